"""Why a dispatch has no whole answer: the stable tokens that our targets give, and what they mean.

A work order names them in ``execution.retry``; reports count by them. The state of a dispatch is not told by its
reason alone: ``deadline`` and ``http.status`` come with several.
"""

from __future__ import annotations

from typing import Final

__all__ = ["REASONS"]

REASONS: Final[dict[str, str]] = {
    "deadline": "the attempt's time was over before a whole answer came",
    "adapter.error": "a fault of tallystick itself or of a library that it uses; its message says which",
    "answer.encoding": "the body's compression was not asked for, or cannot be undone",
    "answer.missing": "there is nothing where the answer should stand",
    "answer.not_json": "the answer has no JSON form",
    "answer.too_large": "the decoded body is larger than `body_bytes_max`",
    "body.error": "the body of a good status says that it is an error",
    "checkpoint.refused": "the device cannot restore its session from the checkpoint",
    "chat.content_filter": "the endpoint's content filter kept the reply back, or turned the request away",
    "chat.length": "the reply was cut at the most tokens, and the work order does not accept that",
    "chat.refusal": "the model refused",
    "connect.dns": "the host's name could not be resolved",
    "connect.failed": "the host could not be reached",
    "connect.proxy": "the proxy refused",
    "connect.refused": "nobody listens there",
    "connect.timeout": "no connection came about in time",
    "connect.tls": "no TLS connection came about",
    "device.broken_off": "the exchange with the device broke off after something had been sent",
    "device.busy": "the device was not free in time",
    "device.failed": "the device did it, and says that it failed; with its own token where it gives one, as in "
    "`device.failed.jammed`",
    "device.faulted": "the device says that it does nothing but a reset",
    "device.not_held": "a device was to be used without a lease on it",
    "device.other": "another device answers",
    "device.out_of_step": "nothing proves that what the device still says would not be taken for the next answer",
    "device.rebooted": "the device has rebooted since it was taken over",
    "device.refused": "the device says: not now",
    "device.silent": "the device gave no sound reply to a question that changes nothing",
    "device.unsure": "the device says that it does not know what became of it",
    "http.redirect": "a redirect that is not followed: not allowed, to another origin, ambiguous, or one of too many",
    "http.status": "the status says that it was refused or that it is unknown; a failure is told with its code, as in "
    "`http.status.500`",
    "lease.lost": "the lease on the device is not this runner's any more, says the ledger or the device",
    "output.too_large": "the program wrote more than `output_bytes_max`",
    "process.exit": "the program ended with an exit status other than 0",
    "process.guard_lost": "what watches over the program was killed, and its exit status with it",
    "process.not_started": "the program could not be started",
    "process.signal": "the program was ended by a signal",
    "python.broken_off": "the function raised a time-out or a broken connection: something may have been sent",
    "python.exception": "the function raised another exception",
    "python.threads": "too many calls that passed their deadline are still going on, or no thread is left",
    "reply.garbage": "what came is no reply that the protocol knows",
    "reply.mismatched": "what came is the reply to something else",
    "request.invalid": "the request cannot be written as HTTP, or the device cannot read it",
    "request.reused": "the device has seen another request under this id",
    "request.tombstoned": "the device has given the id up before the request came",
    "session.lost": "the device has forgotten the session, or is at another turn of it",
    "stream.cut": "the event stream stopped without its end",
    "stream.left": "a guarded target closed a streamed answer before its end",
    "target.failed": "the function raised `Failed` without a reason of its own",
    "target.refused": "the function raised `Refused`",
    "target.unknown": "the function raised `OutcomeUnknown`",
    "wire.broken_off": "a request of a guarded target broke off after something may have been sent",
    "wire.closed": "the connection was closed without a reply",
    "wire.cut": "the connection broke off inside the body",
    "wire.protocol": "the reply is not HTTP, or its head has no bound",
    "wire.proxy": "the proxy broke off after something had been sent",
    "wire.reset": "the connection broke off before a reply",
}

"""Create the ledger: every table, vocabulary and rule of schema 1. Frozen; never imports the live tables."""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = [
    """
    CREATE TABLE artifacts (
        digest TEXT NOT NULL,
        size INTEGER NOT NULL,
        media_type TEXT,
        data BLOB,
        created_us INTEGER NOT NULL,
        PRIMARY KEY (digest)
    )
    """,
    """
    CREATE TABLE attempt_states (
        state TEXT NOT NULL,
        PRIMARY KEY (state)
    )
     WITHOUT ROWID
    """,
    """
    CREATE TABLE budget_kinds (
        kind TEXT NOT NULL,
        PRIMARY KEY (kind)
    )
     WITHOUT ROWID
    """,
    """
    CREATE TABLE call_owners (
        owner TEXT NOT NULL,
        PRIMARY KEY (owner)
    )
     WITHOUT ROWID
    """,
    """
    CREATE TABLE custody_states (
        state TEXT NOT NULL,
        PRIMARY KEY (state)
    )
     WITHOUT ROWID
    """,
    """
    CREATE TABLE devices (
        resource TEXT NOT NULL,
        kind TEXT NOT NULL,
        facts TEXT DEFAULT '{}' NOT NULL,
        compares_fences INTEGER NOT NULL,
        boot_count INTEGER,
        generation INTEGER DEFAULT 1 NOT NULL,
        first_seen_us INTEGER NOT NULL,
        last_seen_us INTEGER NOT NULL,
        PRIMARY KEY (resource)
    )
    """,
    """
    CREATE TABLE dispatch_states (
        state TEXT NOT NULL,
        PRIMARY KEY (state)
    )
     WITHOUT ROWID
    """,
    """
    CREATE TABLE facts (
        name TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (name)
    )
    """,
    """
    CREATE TABLE fences (
        resource TEXT NOT NULL,
        high_water INTEGER NOT NULL,
        PRIMARY KEY (resource)
    )
     WITHOUT ROWID
    """,
    """
    CREATE TABLE if_unknown_values (
        value TEXT NOT NULL,
        PRIMARY KEY (value)
    )
     WITHOUT ROWID
    """,
    """
    CREATE TABLE import_states (
        state TEXT NOT NULL,
        PRIMARY KEY (state)
    )
     WITHOUT ROWID
    """,
    """
    CREATE TABLE judgment_states (
        state TEXT NOT NULL,
        PRIMARY KEY (state)
    )
     WITHOUT ROWID
    """,
    """
    CREATE TABLE lease_states (
        state TEXT NOT NULL,
        PRIMARY KEY (state)
    )
     WITHOUT ROWID
    """,
    """
    CREATE TABLE next_steps (
        step TEXT NOT NULL,
        PRIMARY KEY (step)
    )
     WITHOUT ROWID
    """,
    """
    CREATE TABLE provision_states (
        state TEXT NOT NULL,
        PRIMARY KEY (state)
    )
     WITHOUT ROWID
    """,
    """
    CREATE TABLE qualifications (
        qualification_id TEXT NOT NULL,
        judge_digest TEXT NOT NULL,
        set_digest TEXT NOT NULL,
        document TEXT NOT NULL,
        made_us INTEGER NOT NULL,
        PRIMARY KEY (qualification_id)
    )
    """,
    """
    CREATE INDEX qualifications_by_judge ON qualifications (judge_digest, made_us)
    """,
    """
    CREATE TABLE reservation_states (
        state TEXT NOT NULL,
        PRIMARY KEY (state)
    )
     WITHOUT ROWID
    """,
    """
    CREATE TABLE run_states (
        state TEXT NOT NULL,
        PRIMARY KEY (state)
    )
     WITHOUT ROWID
    """,
    """
    CREATE TABLE slot_states (
        state TEXT NOT NULL,
        PRIMARY KEY (state)
    )
     WITHOUT ROWID
    """,
    """
    CREATE TABLE transitions (
        machine TEXT NOT NULL,
        from_state TEXT NOT NULL,
        to_state TEXT NOT NULL,
        PRIMARY KEY (machine, from_state, to_state)
    )
     WITHOUT ROWID
    """,
    """
    CREATE TABLE workers (
        worker_id TEXT NOT NULL,
        pid INTEGER NOT NULL,
        start_ticks INTEGER NOT NULL,
        boot_id TEXT NOT NULL,
        host TEXT NOT NULL,
        version TEXT NOT NULL,
        began_us INTEGER NOT NULL,
        ended_us INTEGER,
        end_reason TEXT,
        last_batch INTEGER DEFAULT 0 NOT NULL,
        PRIMARY KEY (worker_id)
    )
    """,
    """
    CREATE TABLE runs (
        run_key INTEGER NOT NULL,
        run_id TEXT NOT NULL,
        name TEXT NOT NULL,
        state TEXT NOT NULL,
        work_order TEXT NOT NULL,
        work_order_digest TEXT NOT NULL,
        identity TEXT NOT NULL,
        identity_digest TEXT NOT NULL,
        settings TEXT DEFAULT '{}' NOT NULL,
        planned INTEGER DEFAULT 0 NOT NULL,
        made_by TEXT,
        created_us INTEGER NOT NULL,
        started_us INTEGER,
        ended_us INTEGER,
        active_us INTEGER DEFAULT 0 NOT NULL,
        stop_asked_us INTEGER,
        stop_reason TEXT,
        custody TEXT DEFAULT 'held' NOT NULL,
        custody_epoch INTEGER DEFAULT 1 NOT NULL,
        forked_from TEXT,
        forked_at_event INTEGER,
        left_out TEXT,
        PRIMARY KEY (run_key),
        UNIQUE (run_id),
        FOREIGN KEY(state) REFERENCES run_states (state),
        FOREIGN KEY(made_by) REFERENCES workers (worker_id),
        FOREIGN KEY(custody) REFERENCES custody_states (state)
    )
    """,
    """
    CREATE INDEX runs_by_digest ON runs (work_order_digest, run_key)
    """,
    """
    CREATE TABLE budgets (
        run_key INTEGER NOT NULL,
        budget_no INTEGER NOT NULL,
        scope TEXT NOT NULL,
        scope_value TEXT DEFAULT '' NOT NULL,
        unit TEXT NOT NULL,
        kind TEXT NOT NULL,
        limit_amount INTEGER NOT NULL,
        bound_amount INTEGER,
        held INTEGER DEFAULT 0 NOT NULL,
        settled INTEGER DEFAULT 0 NOT NULL,
        overrun INTEGER DEFAULT 0 NOT NULL,
        unknown_uses INTEGER DEFAULT 0 NOT NULL,
        carried INTEGER DEFAULT 0 NOT NULL,
        PRIMARY KEY (run_key, budget_no),
        UNIQUE (run_key, scope, scope_value, unit),
        CONSTRAINT amounts_not_negative CHECK (held >= 0 AND settled >= 0 AND overrun >= 0 AND limit_amount >= 0),
        CONSTRAINT hard_budget_holds CHECK (kind <> 'hard' OR held + settled <= limit_amount + overrun),
        FOREIGN KEY(run_key) REFERENCES runs (run_key),
        FOREIGN KEY(kind) REFERENCES budget_kinds (kind)
    )
     WITHOUT ROWID
    """,
    """
    CREATE TABLE cases (
        run_key INTEGER NOT NULL,
        case_no INTEGER NOT NULL,
        case_id TEXT NOT NULL,
        digest TEXT NOT NULL,
        input TEXT NOT NULL,
        expected TEXT,
        metadata TEXT DEFAULT '{}' NOT NULL,
        PRIMARY KEY (run_key, case_no),
        UNIQUE (run_key, case_id),
        FOREIGN KEY(run_key) REFERENCES runs (run_key)
    )
    """,
    """
    CREATE TABLE evaluations (
        run_key INTEGER NOT NULL,
        evaluation_no INTEGER NOT NULL,
        evaluation_id TEXT NOT NULL,
        name TEXT NOT NULL,
        document TEXT DEFAULT '{}' NOT NULL,
        document_digest TEXT NOT NULL,
        settings TEXT DEFAULT '{}' NOT NULL,
        set_at_event INTEGER,
        set_read_to INTEGER DEFAULT 0 NOT NULL,
        created_us INTEGER NOT NULL,
        ended_us INTEGER,
        PRIMARY KEY (run_key, evaluation_no),
        UNIQUE (evaluation_id),
        FOREIGN KEY(run_key) REFERENCES runs (run_key)
    )
    """,
    """
    CREATE TABLE events (
        run_key INTEGER NOT NULL,
        event_no INTEGER NOT NULL,
        kind TEXT NOT NULL,
        at_us INTEGER NOT NULL,
        body TEXT DEFAULT '{}' NOT NULL,
        hash BLOB NOT NULL,
        PRIMARY KEY (run_key, event_no),
        FOREIGN KEY(run_key) REFERENCES runs (run_key)
    )
     WITHOUT ROWID
    """,
    """
    CREATE TABLE imports (
        import_id TEXT NOT NULL,
        state TEXT NOT NULL,
        snapshot_digest TEXT NOT NULL,
        run_key INTEGER,
        worker_id TEXT,
        began_us INTEGER NOT NULL,
        ended_us INTEGER,
        PRIMARY KEY (import_id),
        FOREIGN KEY(state) REFERENCES import_states (state),
        FOREIGN KEY(run_key) REFERENCES runs (run_key),
        FOREIGN KEY(worker_id) REFERENCES workers (worker_id)
    )
    """,
    """
    CREATE TABLE leases (
        lease_id TEXT NOT NULL,
        set_id TEXT,
        resource TEXT NOT NULL,
        state TEXT NOT NULL,
        worker_id TEXT,
        run_key INTEGER,
        fence INTEGER NOT NULL,
        asked_us INTEGER NOT NULL,
        since_us INTEGER,
        renewed_us INTEGER,
        ended_us INTEGER,
        boot_id TEXT,
        expires_boot_ns INTEGER,
        lease_ms INTEGER,
        reason TEXT,
        PRIMARY KEY (lease_id),
        FOREIGN KEY(state) REFERENCES lease_states (state),
        FOREIGN KEY(worker_id) REFERENCES workers (worker_id),
        FOREIGN KEY(run_key) REFERENCES runs (run_key)
    )
    """,
    """
    CREATE INDEX leases_by_fence ON leases (resource, fence)
    """,
    """
    CREATE INDEX leases_of_set ON leases (set_id) WHERE set_id IS NOT NULL
    """,
    """
    CREATE UNIQUE INDEX leases_one_holder ON leases (resource) WHERE state = 'held'
    """,
    """
    CREATE INDEX leases_quarantined ON leases (resource) WHERE state = 'quarantined'
    """,
    """
    CREATE INDEX leases_waiting ON leases (resource, lease_id) WHERE state = 'waiting'
    """,
    """
    CREATE TABLE provisions (
        provision_id TEXT NOT NULL,
        run_key INTEGER,
        state TEXT NOT NULL,
        kind TEXT NOT NULL,
        labels TEXT DEFAULT '{}' NOT NULL,
        handle TEXT,
        worker_id TEXT,
        intended_us INTEGER NOT NULL,
        ended_us INTEGER,
        reason TEXT,
        PRIMARY KEY (provision_id),
        FOREIGN KEY(run_key) REFERENCES runs (run_key),
        FOREIGN KEY(state) REFERENCES provision_states (state),
        FOREIGN KEY(worker_id) REFERENCES workers (worker_id)
    )
    """,
    """
    CREATE TABLE variants (
        run_key INTEGER NOT NULL,
        variant_no INTEGER NOT NULL,
        name TEXT NOT NULL,
        target TEXT DEFAULT '{}' NOT NULL,
        if_unknown TEXT NOT NULL,
        PRIMARY KEY (run_key, variant_no),
        UNIQUE (run_key, name),
        FOREIGN KEY(run_key) REFERENCES runs (run_key),
        FOREIGN KEY(if_unknown) REFERENCES if_unknown_values (value)
    )
     WITHOUT ROWID
    """,
    """
    CREATE TABLE budget_amendments (
        run_key INTEGER NOT NULL,
        budget_no INTEGER NOT NULL,
        amendment_no INTEGER NOT NULL,
        old_limit INTEGER NOT NULL,
        new_limit INTEGER NOT NULL,
        reason TEXT NOT NULL,
        made_by TEXT NOT NULL,
        made_us INTEGER NOT NULL,
        PRIMARY KEY (run_key, budget_no, amendment_no),
        FOREIGN KEY(run_key, budget_no) REFERENCES budgets (run_key, budget_no),
        FOREIGN KEY(run_key) REFERENCES runs (run_key)
    )
    """,
    """
    CREATE TABLE evaluation_judges (
        run_key INTEGER NOT NULL,
        evaluation_no INTEGER NOT NULL,
        judge_no INTEGER NOT NULL,
        name TEXT NOT NULL,
        kind TEXT NOT NULL,
        identity TEXT DEFAULT '{}' NOT NULL,
        identity_digest TEXT NOT NULL,
        samples INTEGER DEFAULT 1 NOT NULL,
        requirement TEXT,
        qualification_id TEXT,
        qualified INTEGER,
        PRIMARY KEY (run_key, evaluation_no, judge_no),
        FOREIGN KEY(run_key, evaluation_no) REFERENCES evaluations (run_key, evaluation_no),
        FOREIGN KEY(run_key) REFERENCES runs (run_key),
        FOREIGN KEY(qualification_id) REFERENCES qualifications (qualification_id)
    )
    """,
    """
    CREATE TABLE slots (
        run_key INTEGER NOT NULL,
        slot_no INTEGER NOT NULL,
        state TEXT NOT NULL,
        case_no INTEGER NOT NULL,
        variant_no INTEGER NOT NULL,
        repetition INTEGER NOT NULL,
        attempts INTEGER DEFAULT 0 NOT NULL,
        selected_attempt INTEGER,
        next_step TEXT DEFAULT 'new' NOT NULL,
        not_before_us INTEGER DEFAULT 0 NOT NULL,
        suspect INTEGER DEFAULT 0 NOT NULL,
        solitary_deaths INTEGER DEFAULT 0 NOT NULL,
        reason TEXT,
        PRIMARY KEY (run_key, slot_no),
        FOREIGN KEY(run_key, case_no) REFERENCES cases (run_key, case_no),
        FOREIGN KEY(run_key, variant_no) REFERENCES variants (run_key, variant_no),
        CONSTRAINT selected_has_attempt CHECK ((state = 'selected') = (selected_attempt IS NOT NULL)),
        CONSTRAINT newest_is_selected CHECK (selected_attempt IS NULL OR selected_attempt = attempts),
        FOREIGN KEY(run_key) REFERENCES runs (run_key),
        FOREIGN KEY(state) REFERENCES slot_states (state),
        FOREIGN KEY(next_step) REFERENCES next_steps (step)
    )
     WITHOUT ROWID
    """,
    """
    CREATE INDEX slots_in_flight ON slots (run_key, slot_no) WHERE state = 'in_flight'
    """,
    """
    CREATE INDEX slots_in_trouble ON slots (run_key, state, slot_no) WHERE state <> 'pending' AND state <> 'in_flight' AND state <> 'selected'
    """,
    """
    CREATE INDEX slots_pending ON slots (run_key, not_before_us, slot_no) WHERE state = 'pending'
    """,
    """
    CREATE INDEX slots_suspect ON slots (run_key, solitary_deaths, slot_no) WHERE suspect = 1 AND state = 'pending'
    """,
    """
    CREATE TABLE attempts (
        run_key INTEGER NOT NULL,
        slot_no INTEGER NOT NULL,
        attempt_no INTEGER NOT NULL,
        state TEXT NOT NULL,
        worker_id TEXT,
        fingerprint TEXT NOT NULL,
        custody_epoch INTEGER DEFAULT 1 NOT NULL,
        solitary INTEGER DEFAULT 0 NOT NULL,
        contaminated INTEGER DEFAULT 0 NOT NULL,
        began_us INTEGER NOT NULL,
        ended_us INTEGER,
        reason TEXT,
        message TEXT,
        reused_from TEXT,
        PRIMARY KEY (run_key, slot_no, attempt_no),
        FOREIGN KEY(run_key, slot_no) REFERENCES slots (run_key, slot_no),
        FOREIGN KEY(run_key) REFERENCES runs (run_key),
        FOREIGN KEY(state) REFERENCES attempt_states (state),
        FOREIGN KEY(worker_id) REFERENCES workers (worker_id)
    )
     WITHOUT ROWID
    """,
    """
    CREATE INDEX attempts_contaminated ON attempts (run_key, slot_no, attempt_no) WHERE contaminated = 1
    """,
    """
    CREATE TABLE calls (
        call_id TEXT NOT NULL,
        run_key INTEGER,
        owner TEXT NOT NULL,
        slot_no INTEGER,
        attempt_no INTEGER,
        evaluation_no INTEGER,
        judge_no INTEGER,
        sample_no INTEGER,
        provision_id TEXT,
        lease_id TEXT,
        session_no INTEGER DEFAULT 1 NOT NULL,
        position INTEGER DEFAULT 1 NOT NULL,
        role TEXT DEFAULT 'target' NOT NULL,
        head TEXT DEFAULT '{}' NOT NULL,
        payload BLOB,
        payload_digest TEXT NOT NULL,
        payload_size INTEGER NOT NULL,
        payload_artifact TEXT,
        if_unknown TEXT NOT NULL,
        key_until_us INTEGER,
        fence INTEGER,
        reused_from TEXT,
        intended_us INTEGER NOT NULL,
        PRIMARY KEY (call_id),
        FOREIGN KEY(run_key, slot_no, attempt_no) REFERENCES attempts (run_key, slot_no, attempt_no),
        CONSTRAINT owner_is_named CHECK (CASE owner WHEN 'attempt' THEN run_key IS NOT NULL AND slot_no IS NOT NULL AND attempt_no IS NOT NULL WHEN 'judgment' THEN run_key IS NOT NULL AND evaluation_no IS NOT NULL AND judge_no IS NOT NULL AND slot_no IS NOT NULL AND attempt_no IS NOT NULL AND sample_no IS NOT NULL WHEN 'stack' THEN provision_id IS NOT NULL WHEN 'lease' THEN lease_id IS NOT NULL ELSE 1 END),
        FOREIGN KEY(run_key) REFERENCES runs (run_key),
        FOREIGN KEY(owner) REFERENCES call_owners (owner),
        FOREIGN KEY(provision_id) REFERENCES provisions (provision_id),
        FOREIGN KEY(lease_id) REFERENCES leases (lease_id),
        FOREIGN KEY(payload_artifact) REFERENCES artifacts (digest),
        FOREIGN KEY(if_unknown) REFERENCES if_unknown_values (value)
    )
    """,
    """
    CREATE UNIQUE INDEX calls_of_attempt ON calls (run_key, slot_no, attempt_no, position) WHERE owner = 'attempt'
    """,
    """
    CREATE UNIQUE INDEX calls_of_judgment ON calls (run_key, evaluation_no, judge_no, slot_no, attempt_no, sample_no, position) WHERE owner = 'judgment'
    """,
    """
    CREATE INDEX calls_of_lease ON calls (lease_id, call_id) WHERE lease_id IS NOT NULL
    """,
    """
    CREATE TABLE sessions (
        run_key INTEGER NOT NULL,
        slot_no INTEGER NOT NULL,
        attempt_no INTEGER NOT NULL,
        session_no INTEGER NOT NULL,
        session_id TEXT NOT NULL,
        turn INTEGER DEFAULT 0 NOT NULL,
        message TEXT,
        lease_id TEXT,
        checkpoint_artifact TEXT,
        began_us INTEGER NOT NULL,
        PRIMARY KEY (run_key, slot_no, attempt_no, session_no),
        UNIQUE (session_id),
        FOREIGN KEY(run_key, slot_no, attempt_no) REFERENCES attempts (run_key, slot_no, attempt_no),
        FOREIGN KEY(run_key) REFERENCES runs (run_key),
        FOREIGN KEY(lease_id) REFERENCES leases (lease_id),
        FOREIGN KEY(checkpoint_artifact) REFERENCES artifacts (digest)
    )
    """,
    """
    CREATE TABLE call_attempts (
        call_id TEXT NOT NULL,
        run_key INTEGER NOT NULL,
        slot_no INTEGER NOT NULL,
        attempt_no INTEGER NOT NULL,
        PRIMARY KEY (call_id, run_key, slot_no, attempt_no),
        FOREIGN KEY(run_key, slot_no, attempt_no) REFERENCES attempts (run_key, slot_no, attempt_no),
        FOREIGN KEY(call_id) REFERENCES calls (call_id),
        FOREIGN KEY(run_key) REFERENCES runs (run_key)
    )
     WITHOUT ROWID
    """,
    """
    CREATE TABLE dispatches (
        call_id TEXT NOT NULL,
        dispatch_no INTEGER NOT NULL,
        run_key INTEGER,
        state TEXT NOT NULL,
        worker_id TEXT,
        intended_us INTEGER NOT NULL,
        ended_us INTEGER,
        duration_us INTEGER,
        bytes_sent INTEGER,
        wire_sends INTEGER,
        status INTEGER,
        reason TEXT,
        message TEXT,
        settled_by TEXT,
        raw BLOB,
        raw_artifact TEXT,
        raw_cut INTEGER DEFAULT 0 NOT NULL,
        retry_after_us INTEGER,
        tokens_in INTEGER,
        tokens_out INTEGER,
        cost_nanousd INTEGER,
        usage TEXT,
        replay INTEGER DEFAULT 0 NOT NULL,
        PRIMARY KEY (call_id, dispatch_no),
        FOREIGN KEY(call_id) REFERENCES calls (call_id),
        FOREIGN KEY(run_key) REFERENCES runs (run_key),
        FOREIGN KEY(state) REFERENCES dispatch_states (state),
        FOREIGN KEY(worker_id) REFERENCES workers (worker_id),
        FOREIGN KEY(raw_artifact) REFERENCES artifacts (digest)
    )
    """,
    """
    CREATE INDEX dispatches_asked_to_wait ON dispatches (run_key, ended_us) WHERE retry_after_us IS NOT NULL
    """,
    """
    CREATE INDEX dispatches_open ON dispatches (run_key, call_id) WHERE state IN ('intended', 'unknown')
    """,
    """
    CREATE TABLE judgments (
        run_key INTEGER NOT NULL,
        evaluation_no INTEGER NOT NULL,
        judge_no INTEGER NOT NULL,
        slot_no INTEGER NOT NULL,
        attempt_no INTEGER NOT NULL,
        sample_no INTEGER DEFAULT 1 NOT NULL,
        state TEXT NOT NULL,
        passed INTEGER,
        score TEXT,
        reason TEXT,
        explanation TEXT,
        raw TEXT,
        parser TEXT,
        evidence_digest TEXT,
        cache_key TEXT,
        reused_from TEXT,
        call_id TEXT,
        tries INTEGER DEFAULT 0 NOT NULL,
        suspect INTEGER DEFAULT 0 NOT NULL,
        solitary INTEGER DEFAULT 0 NOT NULL,
        solitary_deaths INTEGER DEFAULT 0 NOT NULL,
        worker_id TEXT,
        judged_us INTEGER,
        PRIMARY KEY (run_key, evaluation_no, judge_no, slot_no, attempt_no, sample_no),
        FOREIGN KEY(run_key, evaluation_no, judge_no) REFERENCES evaluation_judges (run_key, evaluation_no, judge_no),
        FOREIGN KEY(run_key, slot_no, attempt_no) REFERENCES attempts (run_key, slot_no, attempt_no),
        CONSTRAINT judged_has_verdict CHECK (state <> 'judged' OR passed IS NOT NULL OR score IS NOT NULL),
        CONSTRAINT no_verdict_has_reason CHECK (state <> 'no_verdict' OR reason IS NOT NULL),
        CONSTRAINT verdict_only_when_judged CHECK (state = 'judged' OR (passed IS NULL AND score IS NULL)),
        FOREIGN KEY(run_key) REFERENCES runs (run_key),
        FOREIGN KEY(state) REFERENCES judgment_states (state),
        FOREIGN KEY(call_id) REFERENCES calls (call_id),
        FOREIGN KEY(worker_id) REFERENCES workers (worker_id)
    )
     WITHOUT ROWID
    """,
    """
    CREATE INDEX judgments_by_cache_key ON judgments (cache_key) WHERE cache_key IS NOT NULL AND state = 'judged' AND reused_from IS NULL
    """,
    """
    CREATE INDEX judgments_open ON judgments (run_key, evaluation_no, judge_no, slot_no, sample_no) WHERE state IN ('pending', 'judging')
    """,
    """
    CREATE TABLE observations (
        run_key INTEGER NOT NULL,
        slot_no INTEGER NOT NULL,
        attempt_no INTEGER NOT NULL,
        call_id TEXT,
        dispatch_no INTEGER,
        answer TEXT,
        answer_artifact TEXT,
        answer_digest TEXT NOT NULL,
        evidence TEXT DEFAULT '{}' NOT NULL,
        flags TEXT DEFAULT '[]' NOT NULL,
        source TEXT DEFAULT 'wire' NOT NULL,
        observed_us INTEGER NOT NULL,
        PRIMARY KEY (run_key, slot_no, attempt_no),
        FOREIGN KEY(run_key, slot_no, attempt_no) REFERENCES attempts (run_key, slot_no, attempt_no),
        CONSTRAINT one_answer CHECK ((answer IS NULL) <> (answer_artifact IS NULL)),
        FOREIGN KEY(run_key) REFERENCES runs (run_key),
        FOREIGN KEY(call_id) REFERENCES calls (call_id),
        FOREIGN KEY(answer_artifact) REFERENCES artifacts (digest)
    )
    """,
    """
    CREATE TABLE turns (
        run_key INTEGER NOT NULL,
        slot_no INTEGER NOT NULL,
        attempt_no INTEGER NOT NULL,
        session_no INTEGER NOT NULL,
        turn INTEGER NOT NULL,
        message TEXT NOT NULL,
        answer TEXT,
        answer_artifact TEXT,
        answer_digest TEXT NOT NULL,
        evidence TEXT DEFAULT '{}' NOT NULL,
        flags TEXT DEFAULT '[]' NOT NULL,
        source TEXT DEFAULT 'wire' NOT NULL,
        call_id TEXT,
        dispatch_no INTEGER,
        carried_from INTEGER,
        replay INTEGER DEFAULT 0 NOT NULL,
        checkpoint_artifact TEXT,
        committed_us INTEGER NOT NULL,
        PRIMARY KEY (run_key, slot_no, attempt_no, session_no, turn),
        FOREIGN KEY(run_key, slot_no, attempt_no, session_no) REFERENCES sessions (run_key, slot_no, attempt_no, session_no),
        CONSTRAINT one_answer CHECK ((answer IS NULL) <> (answer_artifact IS NULL)),
        CONSTRAINT carried_says_from_where CHECK ((source = 'carried') = (carried_from IS NOT NULL)),
        FOREIGN KEY(run_key) REFERENCES runs (run_key),
        FOREIGN KEY(answer_artifact) REFERENCES artifacts (digest),
        FOREIGN KEY(call_id) REFERENCES calls (call_id),
        FOREIGN KEY(checkpoint_artifact) REFERENCES artifacts (digest)
    )
     WITHOUT ROWID
    """,
    """
    CREATE TABLE reservations (
        call_id TEXT NOT NULL,
        dispatch_no INTEGER NOT NULL,
        budget_no INTEGER NOT NULL,
        run_key INTEGER NOT NULL,
        state TEXT NOT NULL,
        held INTEGER NOT NULL,
        settled INTEGER,
        PRIMARY KEY (call_id, dispatch_no, budget_no),
        FOREIGN KEY(call_id, dispatch_no) REFERENCES dispatches (call_id, dispatch_no),
        FOREIGN KEY(run_key, budget_no) REFERENCES budgets (run_key, budget_no),
        CONSTRAINT amounts_not_negative CHECK (held >= 0 AND (settled IS NULL OR settled >= 0)),
        CONSTRAINT settled_has_amount CHECK ((state = 'settled') = (settled IS NOT NULL)),
        FOREIGN KEY(run_key) REFERENCES runs (run_key),
        FOREIGN KEY(state) REFERENCES reservation_states (state)
    )
     WITHOUT ROWID
    """,
    """
    CREATE TABLE settlements (
        call_id TEXT NOT NULL,
        dispatch_no INTEGER NOT NULL,
        run_key INTEGER,
        decision TEXT NOT NULL,
        made_by TEXT NOT NULL,
        reason TEXT NOT NULL,
        made_us INTEGER NOT NULL,
        PRIMARY KEY (call_id, dispatch_no, made_us),
        FOREIGN KEY(call_id, dispatch_no) REFERENCES dispatches (call_id, dispatch_no),
        FOREIGN KEY(run_key) REFERENCES runs (run_key)
    )
    """,
]

TRIGGERS = [
    """
    CREATE TRIGGER runs_transition BEFORE UPDATE OF state ON runs
    WHEN OLD.state <> NEW.state
    AND NOT EXISTS (SELECT 1 FROM transitions WHERE machine = 'run'
    AND from_state = OLD.state AND to_state = NEW.state)
    BEGIN SELECT RAISE(ABORT, 'the run may not change its state so'); END
    """,
    """
    CREATE TRIGGER slots_transition BEFORE UPDATE OF state ON slots
    WHEN OLD.state <> NEW.state
    AND NOT EXISTS (SELECT 1 FROM transitions WHERE machine = 'slot'
    AND from_state = OLD.state AND to_state = NEW.state)
    BEGIN SELECT RAISE(ABORT, 'the slot may not change its state so'); END
    """,
    """
    CREATE TRIGGER attempts_transition BEFORE UPDATE OF state ON attempts
    WHEN OLD.state <> NEW.state
    AND NOT EXISTS (SELECT 1 FROM transitions WHERE machine = 'attempt'
    AND from_state = OLD.state AND to_state = NEW.state)
    BEGIN SELECT RAISE(ABORT, 'the attempt may not change its state so'); END
    """,
    """
    CREATE TRIGGER dispatches_transition BEFORE UPDATE OF state ON dispatches
    WHEN OLD.state <> NEW.state
    AND NOT EXISTS (SELECT 1 FROM transitions WHERE machine = 'dispatch'
    AND from_state = OLD.state AND to_state = NEW.state)
    BEGIN SELECT RAISE(ABORT, 'the dispatch may not change its state so'); END
    """,
    """
    CREATE TRIGGER reservations_transition BEFORE UPDATE OF state ON reservations
    WHEN OLD.state <> NEW.state
    AND NOT EXISTS (SELECT 1 FROM transitions WHERE machine = 'reservation'
    AND from_state = OLD.state AND to_state = NEW.state)
    BEGIN SELECT RAISE(ABORT, 'the reservation may not change its state so'); END
    """,
    """
    CREATE TRIGGER leases_transition BEFORE UPDATE OF state ON leases
    WHEN OLD.state <> NEW.state
    AND NOT EXISTS (SELECT 1 FROM transitions WHERE machine = 'lease'
    AND from_state = OLD.state AND to_state = NEW.state)
    BEGIN SELECT RAISE(ABORT, 'the lease may not change its state so'); END
    """,
    """
    CREATE TRIGGER judgments_transition BEFORE UPDATE OF state ON judgments
    WHEN OLD.state <> NEW.state
    AND NOT EXISTS (SELECT 1 FROM transitions WHERE machine = 'judgment'
    AND from_state = OLD.state AND to_state = NEW.state)
    BEGIN SELECT RAISE(ABORT, 'the judgment may not change its state so'); END
    """,
    """
    CREATE TRIGGER provisions_transition BEFORE UPDATE OF state ON provisions
    WHEN OLD.state <> NEW.state
    AND NOT EXISTS (SELECT 1 FROM transitions WHERE machine = 'provision'
    AND from_state = OLD.state AND to_state = NEW.state)
    BEGIN SELECT RAISE(ABORT, 'the provision may not change its state so'); END
    """,
    """
    CREATE TRIGGER imports_transition BEFORE UPDATE OF state ON imports
    WHEN OLD.state <> NEW.state
    AND NOT EXISTS (SELECT 1 FROM transitions WHERE machine = 'import'
    AND from_state = OLD.state AND to_state = NEW.state)
    BEGIN SELECT RAISE(ABORT, 'the import may not change its state so'); END
    """,
    """
    CREATE TRIGGER runs_stay BEFORE DELETE ON runs
    WHEN coalesce((SELECT state FROM runs WHERE run_key = OLD.run_key), '') NOT IN ('planning', 'importing')
    BEGIN SELECT RAISE(ABORT, 'rows of runs are never deleted'); END
    """,
    """
    CREATE TRIGGER variants_stay BEFORE DELETE ON variants
    WHEN coalesce((SELECT state FROM runs WHERE run_key = OLD.run_key), '') NOT IN ('planning', 'importing')
    BEGIN SELECT RAISE(ABORT, 'rows of variants are never deleted'); END
    """,
    """
    CREATE TRIGGER cases_stay BEFORE DELETE ON cases
    WHEN coalesce((SELECT state FROM runs WHERE run_key = OLD.run_key), '') NOT IN ('planning', 'importing')
    BEGIN SELECT RAISE(ABORT, 'rows of cases are never deleted'); END
    """,
    """
    CREATE TRIGGER slots_stay BEFORE DELETE ON slots
    WHEN coalesce((SELECT state FROM runs WHERE run_key = OLD.run_key), '') NOT IN ('planning', 'importing')
    BEGIN SELECT RAISE(ABORT, 'rows of slots are never deleted'); END
    """,
    """
    CREATE TRIGGER attempts_stay BEFORE DELETE ON attempts
    WHEN coalesce((SELECT state FROM runs WHERE run_key = OLD.run_key), '') NOT IN ('planning', 'importing')
    BEGIN SELECT RAISE(ABORT, 'rows of attempts are never deleted'); END
    """,
    """
    CREATE TRIGGER calls_stay BEFORE DELETE ON calls
    WHEN coalesce((SELECT state FROM runs WHERE run_key = OLD.run_key), '') NOT IN ('planning', 'importing')
    BEGIN SELECT RAISE(ABORT, 'rows of calls are never deleted'); END
    """,
    """
    CREATE TRIGGER dispatches_stay BEFORE DELETE ON dispatches
    WHEN coalesce((SELECT state FROM runs WHERE run_key = OLD.run_key), '') NOT IN ('planning', 'importing')
    BEGIN SELECT RAISE(ABORT, 'rows of dispatches are never deleted'); END
    """,
    """
    CREATE TRIGGER observations_stay BEFORE DELETE ON observations
    WHEN coalesce((SELECT state FROM runs WHERE run_key = OLD.run_key), '') NOT IN ('planning', 'importing')
    BEGIN SELECT RAISE(ABORT, 'rows of observations are never deleted'); END
    """,
    """
    CREATE TRIGGER events_stay BEFORE DELETE ON events
    WHEN coalesce((SELECT state FROM runs WHERE run_key = OLD.run_key), '') NOT IN ('planning', 'importing')
    BEGIN SELECT RAISE(ABORT, 'rows of events are never deleted'); END
    """,
    """
    CREATE TRIGGER settlements_stay BEFORE DELETE ON settlements
    WHEN coalesce((SELECT state FROM runs WHERE run_key = OLD.run_key), '') NOT IN ('planning', 'importing')
    BEGIN SELECT RAISE(ABORT, 'rows of settlements are never deleted'); END
    """,
    """
    CREATE TRIGGER budgets_stay BEFORE DELETE ON budgets
    WHEN coalesce((SELECT state FROM runs WHERE run_key = OLD.run_key), '') NOT IN ('planning', 'importing')
    BEGIN SELECT RAISE(ABORT, 'rows of budgets are never deleted'); END
    """,
    """
    CREATE TRIGGER budget_amendments_stay BEFORE DELETE ON budget_amendments
    WHEN coalesce((SELECT state FROM runs WHERE run_key = OLD.run_key), '') NOT IN ('planning', 'importing')
    BEGIN SELECT RAISE(ABORT, 'rows of budget_amendments are never deleted'); END
    """,
    """
    CREATE TRIGGER reservations_stay BEFORE DELETE ON reservations
    WHEN coalesce((SELECT state FROM runs WHERE run_key = OLD.run_key), '') NOT IN ('planning', 'importing')
    BEGIN SELECT RAISE(ABORT, 'rows of reservations are never deleted'); END
    """,
    """
    CREATE TRIGGER evaluations_stay BEFORE DELETE ON evaluations
    WHEN coalesce((SELECT state FROM runs WHERE run_key = OLD.run_key), '') NOT IN ('planning', 'importing')
    BEGIN SELECT RAISE(ABORT, 'rows of evaluations are never deleted'); END
    """,
    """
    CREATE TRIGGER evaluation_judges_stay BEFORE DELETE ON evaluation_judges
    WHEN coalesce((SELECT state FROM runs WHERE run_key = OLD.run_key), '') NOT IN ('planning', 'importing')
    BEGIN SELECT RAISE(ABORT, 'rows of evaluation_judges are never deleted'); END
    """,
    """
    CREATE TRIGGER judgments_stay BEFORE DELETE ON judgments
    WHEN coalesce((SELECT state FROM runs WHERE run_key = OLD.run_key), '') NOT IN ('planning', 'importing')
    BEGIN SELECT RAISE(ABORT, 'rows of judgments are never deleted'); END
    """,
    """
    CREATE TRIGGER sessions_stay BEFORE DELETE ON sessions
    WHEN coalesce((SELECT state FROM runs WHERE run_key = OLD.run_key), '') NOT IN ('planning', 'importing')
    BEGIN SELECT RAISE(ABORT, 'rows of sessions are never deleted'); END
    """,
    """
    CREATE TRIGGER turns_stay BEFORE DELETE ON turns
    WHEN coalesce((SELECT state FROM runs WHERE run_key = OLD.run_key), '') NOT IN ('planning', 'importing')
    BEGIN SELECT RAISE(ABORT, 'rows of turns are never deleted'); END
    """,
    """
    CREATE TRIGGER events_unchanged BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'rows of events are never changed'); END
    """,
    """
    CREATE TRIGGER observations_unchanged BEFORE UPDATE ON observations
    BEGIN SELECT RAISE(ABORT, 'rows of observations are never changed'); END
    """,
    """
    CREATE TRIGGER settlements_unchanged BEFORE UPDATE ON settlements
    BEGIN SELECT RAISE(ABORT, 'rows of settlements are never changed'); END
    """,
    """
    CREATE TRIGGER cases_unchanged BEFORE UPDATE ON cases
    BEGIN SELECT RAISE(ABORT, 'rows of cases are never changed'); END
    """,
    """
    CREATE TRIGGER variants_unchanged BEFORE UPDATE ON variants
    BEGIN SELECT RAISE(ABORT, 'rows of variants are never changed'); END
    """,
    """
    CREATE TRIGGER budget_amendments_unchanged BEFORE UPDATE ON budget_amendments
    BEGIN SELECT RAISE(ABORT, 'rows of budget_amendments are never changed'); END
    """,
    """
    CREATE TRIGGER turns_unchanged BEFORE UPDATE ON turns
    BEGIN SELECT RAISE(ABORT, 'rows of turns are never changed'); END
    """,
    """
    CREATE TRIGGER events_without_gaps BEFORE INSERT ON events
    WHEN NEW.event_no <> (SELECT coalesce(max(event_no), 0) + 1 FROM events WHERE run_key = NEW.run_key)
    BEGIN SELECT RAISE(ABORT, 'an event number is out of order'); END
    """,
]

VOCABULARIES = {
    "run_states": ["planning", "importing", "open", "finished", "cancelled", "moving", "moved"],
    "slot_states": ["pending", "in_flight", "selected", "failed", "unknown", "unavailable", "cancelled", "parked"],
    "attempt_states": [
        "running",
        "observed",
        "failed",
        "unknown",
        "late",
        "not_landed",
        "given_back",
        "interrupted",
        "abandoned",
    ],
    "dispatch_states": ["intended", "answered", "refused", "failed", "unknown", "late", "abandoned"],
    "reservation_states": ["held", "settled", "released"],
    "lease_states": ["waiting", "held", "released", "lost", "revoked", "quarantined"],
    "judgment_states": ["pending", "judging", "judged", "no_verdict"],
    "provision_states": ["intended", "provisioned", "ready", "released", "quarantined"],
    "import_states": ["receiving", "complete", "discarded"],
    "custody_states": ["held", "copy", "moving", "moved"],
    "if_unknown_values": ["keep", "resend", "query", "repeat", "restart"],
    "next_steps": ["new", "resend", "query"],
    "call_owners": ["attempt", "suite", "judgment", "stack", "lease"],
    "budget_kinds": ["hard", "soft"],
}

TRANSITIONS = {
    "run": {
        "planning": ["open"],
        "importing": ["cancelled", "finished", "open"],
        "open": ["cancelled", "finished", "importing", "moving"],
        "finished": ["importing", "moving", "open"],
        "cancelled": ["importing", "moving", "open"],
        "moving": ["cancelled", "finished", "importing", "moved", "open"],
        "moved": ["cancelled", "finished", "importing", "open"],
    },
    "slot": {
        "pending": ["cancelled", "failed", "in_flight", "parked", "selected", "unavailable", "unknown"],
        "in_flight": ["failed", "parked", "pending", "selected", "unavailable", "unknown"],
        "failed": ["pending"],
        "unknown": ["cancelled", "failed", "pending", "selected"],
        "unavailable": ["cancelled", "pending"],
        "cancelled": ["pending"],
        "parked": ["cancelled", "pending"],
    },
    "attempt": {
        "running": ["failed", "given_back", "interrupted", "observed", "unknown"],
        "unknown": ["abandoned", "failed", "interrupted", "late", "not_landed", "observed", "running"],
        "late": ["observed"],
    },
    "dispatch": {
        "intended": ["answered", "failed", "refused", "unknown"],
        "unknown": ["abandoned", "answered", "failed", "late", "refused"],
    },
    "reservation": {
        "held": ["released", "settled"],
    },
    "lease": {
        "waiting": ["held", "lost", "released"],
        "held": ["lost", "quarantined", "released", "revoked"],
        "lost": ["quarantined"],
        "revoked": ["quarantined"],
        "quarantined": ["released"],
    },
    "judgment": {
        "pending": ["judged", "judging", "no_verdict"],
        "judging": ["judged", "no_verdict", "pending"],
        "no_verdict": ["pending"],
    },
    "provision": {
        "intended": ["provisioned", "quarantined", "released"],
        "provisioned": ["quarantined", "ready", "released"],
        "ready": ["quarantined", "released"],
        "quarantined": ["released"],
    },
    "import": {
        "receiving": ["complete", "discarded"],
    },
}


def upgrade() -> None:
    connection = op.get_bind()
    for statement in TABLES:
        connection.exec_driver_sql(statement)
    for table, words in VOCABULARIES.items():
        for word in words:
            connection.exec_driver_sql(f"INSERT INTO {table} VALUES (?)", (word,))
    for machine, moves in TRANSITIONS.items():
        for from_state, to_states in moves.items():
            for to_state in to_states:
                connection.exec_driver_sql("INSERT INTO transitions VALUES (?, ?, ?)", (machine, from_state, to_state))
    for statement in TRIGGERS:
        connection.exec_driver_sql(statement)
    connection.exec_driver_sql("PRAGMA application_id = 1952541817")
    connection.exec_driver_sql("PRAGMA user_version = 1")

-- closing.sql: a closed store refuses changes (`StoreSettings.closed`).
-- Triggers refuse them, and an open store has none: it checks nothing. They fire once per statement.

-- The tables that `millrace move` copies, or that change with them. Readers number events in the others.
CREATE OR REPLACE FUNCTION millrace.tables_of_jobs() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT '{queue,tally,task,job,member,ready,lease,event,agenda,past,line,hold,dependency,schedule}'::text[]
$$;

-- Raise MR002 with the stage of the move and the URL of the other store, unless this transaction imports records.
CREATE OR REPLACE FUNCTION millrace.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(current_setting('millrace_move.imports', true), '') <> 'yes' THEN
        RAISE EXCEPTION USING ERRCODE = 'MR002', MESSAGE = TG_ARGV[0], DETAIL = TG_ARGV[1];
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION millrace.open_store() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY millrace.tables_of_jobs() LOOP
        EXECUTE format('DROP TRIGGER IF EXISTS closed ON millrace.%I', name);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION millrace.close_store(stage text, peer text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    name text;
BEGIN
    PERFORM millrace.open_store();
    FOREACH name IN ARRAY millrace.tables_of_jobs() LOOP
        EXECUTE format('CREATE TRIGGER closed BEFORE INSERT OR UPDATE OR DELETE ON millrace.%I FOR EACH STATEMENT '
                       'EXECUTE FUNCTION millrace.refuse_change(%L, %L)', name, stage, peer);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION millrace.allow_import() RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT set_config('millrace_move.imports', 'yes', true)
$$;

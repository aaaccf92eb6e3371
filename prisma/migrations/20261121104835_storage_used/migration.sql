-- AlterTable
ALTER TABLE "namespaces" ADD COLUMN     "storage_bytes" BIGINT NOT NULL DEFAULT 0;

-- By hand from here: what a namespace stores is the sum over all its repositories and jobs, history included,
-- so it is counted as it changes and read from one row.
CREATE FUNCTION count_storage(namespace TEXT, bytes BIGINT) RETURNS void LANGUAGE sql AS $$
    UPDATE namespaces SET storage_bytes = storage_bytes + bytes WHERE id = namespace AND bytes <> 0
$$;

CREATE FUNCTION count_repository_storage() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.namespace_id = NEW.namespace_id THEN
        PERFORM count_storage(NEW.namespace_id, NEW.size_bytes - OLD.size_bytes);
        RETURN NULL;
    END IF;
    IF TG_OP <> 'INSERT' THEN PERFORM count_storage(OLD.namespace_id, -OLD.size_bytes); END IF;
    IF TG_OP <> 'DELETE' THEN PERFORM count_storage(NEW.namespace_id, NEW.size_bytes); END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION count_artifact_storage() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        PERFORM count_storage(OLD.namespace_id, -COALESCE(OLD.artifact_bytes, 0));
    END IF;
    IF TG_OP <> 'DELETE' THEN
        PERFORM count_storage(NEW.namespace_id, COALESCE(NEW.artifact_bytes, 0));
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER count_storage AFTER INSERT OR DELETE OR UPDATE OF size_bytes, namespace_id ON repositories
    FOR EACH ROW EXECUTE FUNCTION count_repository_storage();

CREATE TRIGGER count_storage AFTER INSERT OR DELETE OR UPDATE OF artifact_bytes ON jobs
    FOR EACH ROW EXECUTE FUNCTION count_artifact_storage();

UPDATE namespaces n SET storage_bytes =
    (SELECT COALESCE(SUM(r.size_bytes), 0) FROM repositories r WHERE r.namespace_id = n.id)
  + (SELECT COALESCE(SUM(j.artifact_bytes), 0) FROM jobs j WHERE j.namespace_id = n.id);

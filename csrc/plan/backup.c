#include "plan/backup.h"

#include "base/alloc.h"

static size_t count_bytes(const hl_session_store_entry *entry)
{
    return (size_t)entry->n * hl_dtype_bytes(entry->dtype);
}

static hl_status copy_store(const hl_backup *backup, const hl_session_store_entry *entry,
                            char *host, bool in)
{
    hl_device *device = backup->session->device;
    hl_stream *stream = backup->session->compute;
    size_t bytes = count_bytes(entry);
    if (!bytes) return HL_OK;
    if (in)
        HL_TRY(device->ops->copy(device, entry->data, host, bytes, HL_COPY_HOST_TO_DEVICE, stream));
    else
        HL_TRY(device->ops->copy(device, host, entry->data, bytes, HL_COPY_DEVICE_TO_HOST, stream));
    return device->ops->synchronize(device, stream);
}

hl_status hl_backup_init(hl_session *session, hl_backup *out_backup)
{
    size_t bytes = 0;
    hl_status status;
    *out_backup = (hl_backup){.session = session};
    for (int64_t i = 0; i < session->n_stores; i++) bytes += count_bytes(&session->stores[i]);
    HL_GOTO(hl_alloc(bytes, (void **)&out_backup->data));
    bytes = 0;
    for (int64_t i = 0; i < session->n_stores; i++) {
        HL_GOTO(copy_store(out_backup, &session->stores[i], out_backup->data + bytes, false));
        bytes += count_bytes(&session->stores[i]);
    }
cleanup:
    if (status != HL_OK) hl_backup_deinit(out_backup);
    return status;
}

hl_status hl_backup_restore(const hl_backup *backup, hl_status status)
{
    const hl_session *session = backup->session;
    hl_status_record first;
    size_t at = 0;
    hl_status_save(status, &first);
    for (int64_t i = 0; i < session->n_stores; i++) {
        status = copy_store(backup, &session->stores[i], backup->data + at, true);
        if (status != HL_OK && first.code == HL_OK) hl_status_save(status, &first);
        at += count_bytes(&session->stores[i]);
    }
    return first.code == HL_OK ? HL_OK : hl_status_raise(&first);
}

void hl_backup_deinit(hl_backup *backup)
{
    hl_free(backup->data);
    backup->data = NULL;
}

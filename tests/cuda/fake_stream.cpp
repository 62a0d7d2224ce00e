/* Streams and events of the emulated driver, and when work runs: as late as the contract allows, on
 * the thread that waits for it. */
#include "tests/cuda/fake_state.h"

using namespace fake;

namespace fake
{

void die(CUresult error, const std::string &what)
{
    State &s = state();
    if (!s.dead) s.dead = complain(error, what);
}

void drain(CUstream stream, const Mark *mark)
{
    open_begin();
    while (state().streams.count(stream) && !stream->queue.empty() && !(mark && mark->done)) {
        auto work = std::move(stream->queue.front());
        stream->queue.pop_front();
        work();
    }
    open_end();
}

void drain_all()
{
    for (CUstream stream : std::set<CUstream>(state().streams)) drain(stream, nullptr);
}

CUresult submit(CUstream stream, std::function<void()> work)
{
    State &s = state();
    if (!s.streams.count(stream))
        return complain(CUDA_ERROR_INVALID_HANDLE, "work for a stream that is not (the null one?)");
    if (current() && stream->context != current())
        return complain(CUDA_ERROR_INVALID_HANDLE, "work for a stream of another context");
    auto guarded = [work = std::move(work)] {
        if (!state().dead) work();
    };
    if (!stream->graph) {
        stream->queue.push_back(std::move(guarded));
        return CUDA_SUCCESS;
    }
    stream->graph->nodes.push_back({std::move(guarded), stream->after});
    stream->after = {stream->graph->nodes.size() - 1};
    return CUDA_SUCCESS;
}

} // namespace fake

extern "C" {

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    CALL(CONTEXT);
    if (flags != CU_STREAM_NON_BLOCKING)
        return complain(CUDA_ERROR_INVALID_VALUE, "a stream that waits for the null stream");
    *stream = new CUstream_st;
    (*stream)->context = current();
    s.streams.insert(*stream);
    s.live.streams++;
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    RELEASE(CONTEXT);
    if (!s.streams.count(stream))
        return complain(CUDA_ERROR_INVALID_HANDLE, "a stream is destroyed that is not");
    drain(stream, nullptr);
    if (stream->graph) {
        stream->graph->broken = true;
        stream->graph->members.erase(stream);
        complain(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "a stream is destroyed in its capture");
    }
    s.streams.erase(stream);
    return forget(stream, s.live.streams, result);
}

CUresult cuStreamSynchronize(CUstream stream)
{
    CALL(CONTEXT);
    NOT_IN_CAPTURE;
    if (!s.streams.count(stream))
        return complain(CUDA_ERROR_INVALID_HANDLE, "a wait for a stream that is not");
    s.syncs++;
    drain(stream, nullptr);
    return s.dead;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned)
{
    CALL(CONTEXT);
    if (!s.streams.count(stream))
        return complain(CUDA_ERROR_INVALID_HANDLE, "a wait on a stream that is not");
    if (event->capture) {
        CUgraph graph = find_capture(event->capture);
        if (!graph)
            return complain(CUDA_ERROR_CAPTURED_EVENT, "a wait for an event of an ended capture");
        if (stream->graph && stream->graph != graph)
            return complain(CUDA_ERROR_STREAM_CAPTURE_MERGE, "an event joins two captures");
        if (!stream->graph) {
            stream->graph = graph;
            stream->after.clear();
            graph->members.insert(stream);
        }
        stream->after.insert(event->after.begin(), event->after.end());
        return CUDA_SUCCESS;
    }
    if (stream->graph) {
        stream->graph->broken = true;
        return complain(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                        "a captured stream waits for an event from outside");
    }
    if (!event->mark) return CUDA_SUCCESS;
    std::shared_ptr<Mark> mark = event->mark;
    stream->queue.push_back([mark] {
        if (!mark->done) drain(mark->stream, mark.get());
    });
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    CALL(CONTEXT);
    if (flags & ~(unsigned)(CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC))
        return complain(CUDA_ERROR_INVALID_VALUE, "an event with unknown flags");
    *event = new CUevent_st;
    (*event)->flags = flags;
    s.live.events++;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event)
{
    RELEASE(CONTEXT);
    return forget(event, s.live.events, result);
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    CALL(CONTEXT);
    if (!s.streams.count(stream))
        return complain(CUDA_ERROR_INVALID_HANDLE, "an event is recorded on a stream that is not");
    event->capture = stream->graph ? stream->graph->capture : 0;
    event->after = stream->after;
    event->mark = nullptr;
    if (stream->graph) return CUDA_SUCCESS;
    auto mark = std::make_shared<Mark>();
    mark->stream = stream;
    event->mark = mark;
    stream->queue.push_back([mark] {
        mark->done = true;
        mark->ms = state().clock_ms;
    });
    return CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent event)
{
    CALL(CONTEXT);
    NOT_IN_CAPTURE;
    if (event->capture) return complain(CUDA_ERROR_CAPTURED_EVENT, "a wait for a captured event");
    s.syncs++;
    if (event->mark && !event->mark->done) drain(event->mark->stream, event->mark.get());
    return s.dead;
}

/* Asked again and again it must come true some time: the second look lets the stream run. */
CUresult cuEventQuery(CUevent event)
{
    CALL(CONTEXT);
    NOT_IN_CAPTURE;
    if (event->capture) return complain(CUDA_ERROR_CAPTURED_EVENT, "a look at a captured event");
    if (!event->mark || event->mark->done) return s.dead;
    if (event->mark->looks++) drain(event->mark->stream, event->mark.get());
    return CUDA_ERROR_NOT_READY;
}

CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
    CALL(CONTEXT);
    if ((from->flags | to->flags) & CU_EVENT_DISABLE_TIMING)
        return complain(CUDA_ERROR_INVALID_HANDLE, "the time between events that keep none");
    if (!from->mark || !to->mark)
        return complain(CUDA_ERROR_INVALID_HANDLE, "the time between events not recorded");
    if (!from->mark->done || !to->mark->done) return CUDA_ERROR_NOT_READY;
    *ms = (float)(to->mark->ms - from->mark->ms);
    return CUDA_SUCCESS;
}

/* ---- fake libraries -------------------------------------------------------------------------- */

CUresult hl_fake_submit(CUstream stream, double ms, hl_fake_work_fn run, const void *data,
                        size_t bytes)
{
    std::lock_guard<std::recursive_mutex> hold(state().lock);
    std::vector<char> copy((const char *)data, (const char *)data + bytes);
    return submit(stream, [=]() mutable {
        const char *wrong = run(copy.data());
        state().clock_ms += ms;
        if (wrong) die(CUDA_ERROR_LAUNCH_FAILED, wrong);
    });
}

} // extern "C"

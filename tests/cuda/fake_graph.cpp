/* Captures and graphs of the emulated driver: a capture is of one thread and joins what it forks; a
 * graph replays in another legal order each time. */
#include "tests/cuda/fake_state.h"

using namespace fake;

namespace fake
{

CUgraph find_capture(uint64_t number)
{
    for (CUstream stream : state().streams)
        if (stream->graph && stream->graph->capture == number) return stream->graph;
    return nullptr;
}

CUresult forbid_in_capture(const char *what)
{
    for (CUstream stream : state().streams) {
        if (!stream->graph || stream->graph->thread != std::this_thread::get_id()) continue;
        stream->graph->broken = true;
        return complain(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, std::string(what) + " in a capture");
    }
    return CUDA_SUCCESS;
}

} // namespace fake

extern "C" {

/* ---- capture --------------------------------------------------------------------------------- */

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    CALL(CONTEXT);
    if (!s.streams.count(stream) || stream->graph || mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        return complain(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                        "a capture of the null stream, within another, or not of one thread");
    stream->graph = new CUgraph_st;
    stream->graph->capture = ++s.n_captures;
    stream->graph->origin = stream;
    stream->graph->members = {stream};
    stream->graph->thread = std::this_thread::get_id();
    stream->after.clear();
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *out_graph)
{
    RELEASE(CONTEXT);
    *out_graph = nullptr;
    CUgraph graph = stream->graph;
    if (!graph) return result ? result : CUDA_ERROR_INVALID_VALUE;
    if (graph->origin != stream)
        return complain(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "a capture ends on another stream");
    std::set<size_t> last;
    for (size_t i = 0; i < graph->nodes.size(); i++) last.insert(i);
    for (const Node &node : graph->nodes)
        for (size_t before : node.after) last.erase(before);
    for (size_t end : stream->after) last.erase(end);
    if (!last.empty() && !result)
        result = complain(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "a captured stream never joins");
    if (graph->thread != std::this_thread::get_id() && !result)
        result =
            complain(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a capture ends on another thread");
    if (graph->broken && !result) result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    for (CUstream member : graph->members) member->graph = nullptr;
    if (result) {
        delete graph;
        return result;
    }
    s.live.graphs++;
    *out_graph = graph;
    return CUDA_SUCCESS;
}

bool hl_fake_is_capturing(CUstream stream)
{
    std::lock_guard<std::recursive_mutex> hold(state().lock);
    return state().streams.count(stream) && stream->graph;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long)
{
    CALL(CONTEXT);
    NOT_IN_CAPTURE;
    *exec = new CUgraphExec_st{graph->nodes};
    s.live.execs++;
    return CUDA_SUCCESS;
}

/* Nodes in an order that their edges allow: a pick among the ready ones, another at each launch. */
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    CALL(CONTEXT);
    if (s.streams.count(stream) && stream->graph) {
        stream->graph->broken = true;
        return complain(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a graph is launched in a capture");
    }
    uint64_t pick = s.replay_order++;
    std::set<size_t> done;
    while (done.size() < exec->nodes.size()) {
        std::vector<size_t> ready;
        for (size_t i = 0; i < exec->nodes.size(); i++) {
            bool is_ready = !done.count(i);
            for (size_t before : exec->nodes[i].after) is_ready = is_ready && done.count(before);
            if (is_ready) ready.push_back(i);
        }
        pick = pick * 6364136223846793005u + 1442695040888963407u;
        size_t next = ready[(pick >> 33) % ready.size()];
        done.insert(next);
        if (CUresult wrong = submit(stream, exec->nodes[next].run)) return wrong;
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    RELEASE(CONTEXT);
    drain_all();
    return forget(exec, s.live.execs, result);
}

CUresult cuGraphDestroy(CUgraph graph)
{
    RELEASE(CONTEXT);
    return forget(graph, s.live.graphs, result);
}

} // extern "C"

/* The NVRTC of fake_nvrtc.h: each program gets a folder with the headers that came with it, and g++
 * makes a shared library there. FAKE_ROOT is the tree (for the emulation's own headers alone),
 * FAKE_FLAGS what the test program is compiled with. */
#include "tests/cuda/fake_nvrtc.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

namespace fs = std::filesystem;

enum { ERROR_INVALID_INPUT = 3, ERROR_INVALID_PROGRAM = 4, ERROR_INVALID_OPTION = 5 };
enum { ERROR_COMPILATION = 6 };
enum { OWN_VERSION = 1010 };

struct _nvrtcProgram {
    std::string source, name, log, code;
    std::vector<std::pair<std::string, std::string>> headers;
};

namespace
{

struct state {
    std::mutex lock;
    int64_t fail_at = 0, seen = 0, compiles = 0;
    bool is_sticky = false;
    int error = 0, live = 0, known = 0, version = OWN_VERSION;
    std::string arch;
    std::map<std::string, std::string> made; /* code by text: g++ runs once for the same one */
    static state &get()
    {
        static state s;
        return s;
    }
};

/* The error that this call is to fail with; 0: none. */
int take_fault()
{
    state &s = state::get();
    std::lock_guard<std::mutex> guard(s.lock);
    s.seen++;
    if (s.fail_at == 0) return 0;
    if (s.fail_at > 1) {
        s.fail_at--;
        return 0;
    }
    if (!s.is_sticky) s.fail_at = 0;
    return s.error;
}
#define CALL                                                                                       \
    if (int fault = take_fault()) return fault

std::string read_file(const fs::path &path)
{
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
}

void write_file(const fs::path &path, const std::string &text)
{
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
}

/* Runs a command; what it says goes to the file. */
bool run(const std::vector<std::string> &command, const fs::path &log)
{
    std::vector<char *> args;
    for (const std::string &word : command) args.push_back((char *)word.c_str());
    args.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    pid_t child;
    int status = -1;
    bool started = posix_spawnp(&child, args[0], &actions, nullptr, args.data(), environ) == 0;
    posix_spawn_file_actions_destroy(&actions);
    return started && waitpid(child, &status, 0) == child && status == 0;
}

int compile(nvrtcProgram program, const fs::path &folder)
{
    /* <stdint.h> and its like are g++'s own here. */
    for (auto &[name, text] : program->headers)
        if (name.find('/') != std::string::npos) write_file(folder / "headers" / name, text);
    for (std::string name : {"tests/cuda/emu/twin.h", "tests/cuda/emu/emu.h"})
        write_file(folder / "headers" / name, "#include \"" FAKE_ROOT "/" + name + "\"\n");
    write_file(folder / program->name, program->source);
    std::vector<std::string> command = {"g++",
                                        "-x",
                                        "c++",
                                        "-std=c++17",
                                        "-O1",
                                        "-shared",
                                        "-fPIC",
                                        "-fvisibility=hidden",
                                        "-ffp-contract=off",
                                        "-DHL_EMULATE=\"tests/cuda/emu/twin.h\"",
                                        "-iquote",
                                        folder / "headers",
                                        folder / program->name,
                                        "-o",
                                        folder / "code.so"};
    std::istringstream flags(FAKE_FLAGS);
    command.insert(command.begin() + 1, std::istream_iterator<std::string>(flags), {});
    bool is_made = run(command, folder / "log");
    program->log = read_file(folder / "log");
    program->code = is_made ? read_file(folder / "code.so") : "";
    return is_made ? 0 : ERROR_COMPILATION;
}

int copy_out(const std::string &from, char *to)
{
    memcpy(to, from.data(), from.size());
    return 0;
}

} // namespace

int64_t hl_fake_nvrtc_fail(int64_t k, bool sticky, int error)
{
    state &s = state::get();
    std::lock_guard<std::mutex> guard(s.lock);
    int64_t seen = s.seen;
    s.fail_at = k, s.is_sticky = sticky, s.error = error, s.seen = 0;
    return seen;
}
int64_t hl_fake_nvrtc_compiles(void)
{
    return state::get().compiles;
}
int hl_fake_nvrtc_live(void)
{
    return state::get().live;
}
void hl_fake_nvrtc_pretend(int version, int arch)
{
    state::get().version = version ? version : OWN_VERSION;
    state::get().known = arch;
}
const char *hl_fake_nvrtc_arch(void)
{
    return state::get().arch.c_str();
}

nvrtcResult nvrtcVersion(int *major, int *minor)
{
    CALL;
    *major = state::get().version / 1000, *minor = state::get().version % 1000 / 10;
    return 0;
}

static const int archs[] = {75, 80, 86, 89, 90, 100, 120};

nvrtcResult nvrtcGetNumSupportedArchs(int *n)
{
    CALL;
    *n = state::get().known ? 1 : (int)std::size(archs);
    return 0;
}

nvrtcResult nvrtcGetSupportedArchs(int *out)
{
    CALL;
    if (state::get().known)
        *out = state::get().known;
    else
        std::copy(std::begin(archs), std::end(archs), out);
    return 0;
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram *program, const char *source, const char *name,
                               int n_headers, const char *const *headers,
                               const char *const *header_names)
{
    CALL;
    *program = new _nvrtcProgram{source, name, "", "", {}};
    for (int i = 0; i < n_headers; i++)
        (*program)->headers.emplace_back(header_names[i], headers[i]);
    state::get().live++;
    return 0;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program)
{
    int fault = take_fault();
    if (!*program) return ERROR_INVALID_PROGRAM;
    delete *program;
    *program = nullptr;
    state::get().live--;
    return fault;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int n_options, const char *const *options)
{
    CALL;
    state &s = state::get();
    const std::string arch = "--gpu-architecture=";
    bool has_arch = false, is_plain = false;
    for (int i = 0; i < n_options; i++) {
        std::string option = options[i];
        if (option.rfind(arch, 0) == 0) has_arch = true, s.arch = option.substr(arch.size());
        is_plain = is_plain || option == "--fmad=false";
        if (option.find("fast") != std::string::npos) return ERROR_INVALID_OPTION;
    }
    if (!has_arch || !is_plain) return ERROR_INVALID_OPTION;
    s.compiles++;
    std::string text = program->source;
    for (auto &[name, header] : program->headers) text += name + header;
    auto known = s.made.find(text);
    if (known != s.made.end()) {
        program->code = known->second;
        return 0;
    }
    std::string folder = (fs::temp_directory_path() / "hl-nvrtc-XXXXXX").string();
    if (!mkdtemp(folder.data())) return ERROR_INVALID_INPUT;
    int result = compile(program, folder);
    std::error_code ignored;
    fs::remove_all(folder, ignored);
    if (result == 0) s.made[text] = program->code;
    return result;
}

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *bytes)
{
    CALL;
    *bytes = program->log.size() + 1;
    return 0;
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *log)
{
    CALL;
    memcpy(log, program->log.c_str(), program->log.size() + 1);
    return 0;
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *bytes)
{
    CALL;
    *bytes = program->code.size();
    return 0;
}

nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *cubin)
{
    CALL;
    return copy_out(program->code, cubin);
}

nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t *bytes)
{
    CALL;
    *bytes = program->code.size();
    return 0;
}

nvrtcResult nvrtcGetPTX(nvrtcProgram program, char *ptx)
{
    CALL;
    return copy_out(program->code, ptx);
}

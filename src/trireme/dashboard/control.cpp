#include "trireme/dashboard/control.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/new_file.h"
#include "trireme/experiment/experiment.h"
#include "trireme/experiment/overview.h"
#include "trireme/http/message.h"
#include "trireme/observe/heartbeat.h"

namespace trireme::dashboard {
namespace {

namespace fs = std::filesystem;
using http::HttpError;

constexpr std::size_t kLongestNote = 4000;

[[noreturn]] void unknown_action(const std::string& action) {
  throw HttpError(400, fmt::format("\"{}\" is no action; there are pause, resume, stop and save", action));
}

void refuse_trial(const WatchedRun& run) {
  if (run.place().experiment.empty()) return;
  throw HttpError(409, "this run is a trial: its sweep would start it again. Pause or resume the sweep");
}

std::string resume_run(const WatchedRun& run, const ControlOptions& options) {
  const fs::path& folder = run.place().path;
  if (run.is_active()) throw HttpError(409, "a process trains here already");
  if (run.summary().state == RunState::kFinished)
    throw HttpError(409, "the run is finished; raise train.steps to train on");
  if (!fs::exists(folder / "recipe.toml")) throw HttpError(409, "the run has no recipe.toml to go on with");
  fs::remove(folder / "wanted");
  observe::take_back_stop(folder);
  std::vector<std::string> words{options.program, "supervise",     "--",
                                 options.program, "train",         (folder / "recipe.toml").string(),
                                 "--out",         folder.string(), "--resume"};
  if (run.summary().ranks > 1) words.insert(words.end(), {"--ranks", std::to_string(run.summary().ranks)});
  start_detached(words, folder / "supervise.log", folder);
  return "going on from its newest checkpoint";
}

}  // namespace

void start_detached(const std::vector<std::string>& words, const fs::path& log, const fs::path& directory) {
  // Everything that allocates happens before the fork: other threads may hold locks.
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int output = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (output < 0) throw IoError(fmt::format("{} cannot be written: {}", log.string(), std::strerror(errno)));
  const int input = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const std::string place = directory.string();
  const pid_t child = ::fork();
  if (child == 0) {
    ::setsid();
    const pid_t grandchild = ::fork();  // whose parent is gone: nobody has to wait for it
    if (grandchild != 0) ::_exit(grandchild < 0 ? 1 : 0);
    ::dup2(input, STDIN_FILENO);
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
    if (::chdir(place.c_str()) == 0) ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  const int why = errno;
  ::close(output);
  ::close(input);
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || status != 0)
    throw IoError(fmt::format("no process could be started: {}", std::strerror(why)));
}

std::string act_on(const WatchedRun& run, const std::string& action, const ControlOptions& options) {
  const fs::path& folder = run.place().path;
  log_info("{}: {} was asked for on the page", run.place().name, action);
  if (action == "save") {
    if (!run.is_active()) throw HttpError(409, "no process trains here");
    observe::ask_to_save(folder);
    return "a checkpoint will be saved after this step";
  }
  if (action != "pause" && action != "stop" && action != "resume") unknown_action(action);
  refuse_trial(run);
  if (action == "resume") return resume_run(run, options);
  if (action == "pause" && !run.is_active()) throw HttpError(409, "no process trains here");
  if (action == "stop") write_text_file(folder / "wanted", "stopped\n");
  if (run.is_active()) observe::ask_to_stop(folder);
  return action == "pause" ? "the run saves after this step and ends" : "stopped; what it has saved stays";
}

std::string act_on(const WatchedSweep& sweep, const std::string& action, const ControlOptions& options) {
  const experiment::ExperimentFolder folder(sweep.place().path);
  log_info("{}: {} was asked for on the page", sweep.place().name, action);
  if (action == "pause" || action == "stop") {
    folder.read();
    if (!folder.is_locked() && experiment::overview_of(folder).state == experiment::ExperimentState::kDone)
      throw HttpError(409, "this sweep is done");
    folder.want(action == "pause" ? experiment::Wanted::kPaused : experiment::Wanted::kStopped);
    return "its trials save and end";
  }
  if (action != "resume") unknown_action(action);
  if (folder.is_locked()) throw HttpError(409, "a process runs this sweep already");
  const experiment::Experiment experiment = folder.read();
  folder.want(experiment::Wanted::kRunning);
  start_detached({options.program, "experiments", "resume", folder.path().string(), "--slots",
                  std::to_string(std::max(options.slots, experiment.slots_per_trial))},
                 folder.path() / "sweep.log", folder.path());
  return "the sweep goes on";
}

void write_note(const WatchedRun& run, const std::string& note) {
  if (note.size() > kLongestNote) throw HttpError(400, fmt::format("a note has at most {} bytes", kLongestNote));
  const fs::path file = run.place().path / "note.txt";
  if (note.empty()) {
    fs::remove(file);
  } else {
    write_text_file(file, note);
  }
}

}  // namespace trireme::dashboard

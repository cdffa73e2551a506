#include "trireme/base/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "trireme/base/error.h"

namespace trireme {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLook{20};

/// Both ends closed in whatever else is started: a child that held another's pipe would hide its end.
struct Pipe {
  int read = -1, write = -1;
  explicit Pipe(bool wanted) {
    int ends[2];
    if (!wanted) return;
    if (::pipe2(ends, O_CLOEXEC) != 0) throw IoError(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
    read = ends[0], write = ends[1];
  }
};

void close_descriptor(int& descriptor) {
  if (descriptor >= 0) ::close(descriptor);
  descriptor = -1;
}

}  // namespace

ChildProcess::ChildProcess(std::vector<std::string> words, Streams streams)
    : ChildProcess(std::move(words), Options{.streams = streams}) {}

ChildProcess::ChildProcess(std::vector<std::string> words, const Options& options) {
  TRIREME_CHECK(!words.empty(), "there is no command to start");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const bool piped = options.streams == Streams::kPiped;
  const bool piped_input = piped || options.streams == Streams::kPipedInput;
  Pipe in(piped_input), out(piped), err(piped);
  int file = -1;
  if (!options.output.empty()) {
    file = ::open(options.output.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0) throw IoError(fmt::format("{} cannot be written: {}", options.output.string(), std::strerror(errno)));
  }
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  const int why = errno;
  if (pid_ != 0) close_descriptor(file);
  if (pid_ < 0) throw IoError(fmt::format("cannot start {}: {}", words[0], std::strerror(why)));
  if (pid_ == 0) {  // until exec only what is safe after a fork
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(128 + SIGTERM);  // it died before the line above
    for (const int signal : {SIGINT, SIGTERM, SIGPIPE}) ::signal(signal, SIG_DFL);
    if (piped_input) ::dup2(in.read, STDIN_FILENO);
    if (piped) {
      ::dup2(out.write, STDOUT_FILENO);
      ::dup2(err.write, STDERR_FILENO);
    }
    if (file >= 0) {
      ::dup2(file, STDOUT_FILENO);
      ::dup2(file, STDERR_FILENO);
    }
    if (!options.directory.empty() && ::chdir(options.directory.c_str()) != 0) {
      ::perror(options.directory.c_str());
      ::_exit(127);
    }
    ::execvp(arguments[0], arguments.data());
    ::perror(arguments[0]);
    ::_exit(127);
  }
  ::setpgid(pid_, pid_);  // also here: whoever is first
  close_descriptor(in.read), close_descriptor(out.write), close_descriptor(err.write);
  input_ = in.write, output_ = out.read, errors_ = err.read;
}

ChildProcess::~ChildProcess() {
  if (!status_) end(std::chrono::milliseconds(0));
  close_input();
  close_descriptor(output_);
  close_descriptor(errors_);
}

void ChildProcess::close_input() { close_descriptor(input_); }

std::optional<int> ChildProcess::poll() {
  if (status_) return status_;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  status_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  ::kill(-pid_, SIGKILL);  // what it left behind
  return status_;
}

int ChildProcess::wait() {
  while (!poll()) std::this_thread::sleep_for(kLook);
  return *status_;
}

void ChildProcess::tell(int signal) const { ::kill(-pid_, signal); }

int ChildProcess::end(std::chrono::milliseconds grace) {
  if (!poll() && grace.count() > 0) tell(SIGTERM);
  const auto until = Clock::now() + grace;
  while (!poll() && Clock::now() < until) std::this_thread::sleep_for(kLook);
  while (!poll()) {
    ::kill(-pid_, SIGKILL);
    std::this_thread::sleep_for(kLook);
  }
  return *status_;
}

std::string ended_how(int status) {
  if (status > 128 && status <= 128 + SIGRTMAX)
    return fmt::format("was ended by signal {} ({})", status - 128, ::strsignal(status - 128));
  return fmt::format("ended with status {}", status);
}

}  // namespace trireme

#include "trireme/launch/launcher.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>

#include "trireme/base/child_process.h"
#include "trireme/base/error.h"
#include "trireme/base/units.h"
#include "trireme/launch/processes.h"
#include "trireme/launch/quote.h"

namespace trireme::launch {
namespace {

/// In the order of --help.
const std::array<std::unique_ptr<const Launcher>, 4>& launcher_table() {
  static const std::array<std::unique_ptr<const Launcher>, 4> table = {make_slurm(), make_jobset(), make_hosts(),
                                                                       make_node()};
  return table;
}

void copy_all(int from, int to) {
  char bytes[4096];
  for (ssize_t got; (got = ::read(from, bytes, sizeof bytes)) > 0 || (got < 0 && errno == EINTR);) {
    if (got > 0 && ::write(to, bytes, static_cast<std::size_t>(got)) < 0) return;
  }
}

/// The command with `text` on its standard input; what it prints goes where ours does.
int hand_in(const std::vector<std::string>& command, std::string_view text) {
  ::signal(SIGPIPE, SIG_IGN);  // a command that does not read all of it says why by itself
  ChildProcess child(command, ChildProcess::Streams::kPiped);
  while (!text.empty()) {
    const ssize_t written = ::write(child.input(), text.data(), text.size());
    if (written < 0 && errno != EINTR) break;
    text.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
  }
  child.close_input();
  copy_all(child.output(), STDOUT_FILENO);
  copy_all(child.errors(), STDERR_FILENO);
  const int status = child.wait();
  if (status == 127) {
    throw ConfigError(
        fmt::format("{} cannot be started here", command[0]),
        fmt::format("run this where {} is installed, or print what it would be given: --dry-run", command[0]));
  }
  return status == 0 ? 0 : 1;
}

}  // namespace

Settings::Settings(const Launcher& launcher, const std::map<std::string, std::string>& given) {
  values_[launcher.name()];
  for (Setting& setting : launcher.settings()) values_[setting.name] = std::move(setting.standard);
  for (const auto& [name, value] : given) {
    if (values_.contains(name)) values_[name] = value;
  }
}

const std::string& Settings::text(const std::string& name) const {
  const auto found = values_.find(name);
  TRIREME_CHECK(found != values_.end(), "launcher setting {} is read but not described", name);
  return found->second;
}

int Settings::number(const std::string& name, int least) const {
  const std::string& given = text(name);
  int value = 0;
  const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), value);
  if (error != std::errc{} || end != given.data() + given.size() || value < least) {
    throw ConfigError(fmt::format("--{} is \"{}\", which is no whole number from {} up", name, given, least),
                      fmt::format("write --{} {}", name, std::max(least, 1)));
  }
  return value;
}

std::chrono::seconds Settings::seconds(const std::string& name) const {
  return with_context(fmt::format("while reading --{}", name),
                      [&] { return std::chrono::duration_cast<std::chrono::seconds>(parse_duration(text(name))); });
}

int Launcher::slots(const Settings&) const { return 0; }
int Launcher::nodes(const Settings&) const { return 0; }

std::span<const std::unique_ptr<const Launcher>> launchers() { return launcher_table(); }

const Launcher* find_launcher(std::string_view name) {
  for (const auto& launcher : launcher_table()) {
    if (launcher->name() == name) return launcher.get();
  }
  return nullptr;
}

std::string to_text(const Submission& submission) {
  std::string out = submission.text;
  for (const Process& process : submission.processes) {
    out += fmt::format("# {}\n{}\n", process.name, sh_line(process.words));
  }
  return out;
}

int submit(const Submission& submission) {
  if (submission.command.empty()) return run_processes(submission.processes);
  return hand_in(submission.command, submission.text);
}

}  // namespace trireme::launch

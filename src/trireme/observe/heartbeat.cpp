#include "trireme/observe/heartbeat.h"

#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "trireme/observe/json_values.h"

namespace trireme::observe {
namespace {

std::filesystem::path heartbeat_file_of(const std::filesystem::path& run) { return run / "heartbeat.json"; }

std::filesystem::path stop_file_of(const std::filesystem::path& run) { return run / "stop"; }

}  // namespace

void write_heartbeat(const std::filesystem::path& run, const Heartbeat& heartbeat) noexcept {
  try {
    std::string text =
        Json{{"beats", heartbeat.beats}, {"step", heartbeat.step}, {"saved", heartbeat.saved}, {"pid", heartbeat.pid}}
            .dump();
    text.resize(128, ' ');  // one write over the last: always the same length
    text.back() = '\n';
    const int file = ::open(heartbeat_file_of(run).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) return;
    [[maybe_unused]] const auto ignored = ::pwrite(file, text.data(), text.size(), 0);
    ::close(file);
  } catch (...) {
  }
}

std::optional<Heartbeat> read_heartbeat(const std::filesystem::path& run) {
  std::ifstream file(heartbeat_file_of(run));
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  return Heartbeat{.beats = json.value("beats", std::int64_t{0}),
                   .step = json.value("step", std::int64_t{0}),
                   .saved = json.value("saved", std::int64_t{-1}),
                   .pid = json.value("pid", std::int64_t{0})};
}

void ask_to_stop(const std::filesystem::path& run) noexcept {
  const int file = ::open(stop_file_of(run).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (file >= 0) ::close(file);
}

bool asked_to_stop(const std::filesystem::path& run) noexcept { return ::access(stop_file_of(run).c_str(), F_OK) == 0; }

void take_back_stop(const std::filesystem::path& run) noexcept { ::unlink(stop_file_of(run).c_str()); }

void ask_to_save(const std::filesystem::path& run) noexcept {
  const int file = ::open((run / "save").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (file >= 0) ::close(file);
}

bool take_save_wish(const std::filesystem::path& run) noexcept { return ::unlink((run / "save").c_str()) == 0; }

}  // namespace trireme::observe

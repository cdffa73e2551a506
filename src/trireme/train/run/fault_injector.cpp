#include "trireme/train/run/fault_injector.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/wall_clock.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
using Kind = spec::Fault::Kind;
using Moment = spec::Fault::Moment;

fs::path history(const fs::path& folder) { return folder / "injected.jsonl"; }

std::multiset<std::string> happened(const fs::path& folder) {
  std::multiset<std::string> texts;
  std::ifstream file(history(folder));
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.contains("fault")) texts.insert(json["fault"].get<std::string>());
  }
  return texts;
}

Moment moment_of(checkpoint::SavePhase phase) {
  using checkpoint::SavePhase;
  switch (phase) {
    case SavePhase::kCopy:
      return Moment::kCopying;
    case SavePhase::kWrite:
      return Moment::kWriting;
    case SavePhase::kWritten:
      return Moment::kWritten;
    case SavePhase::kPublish:
      return Moment::kPublishing;
    case SavePhase::kPublished:
      break;
  }
  return Moment::kPublished;
}

void flip_bit_in(const fs::path& checkpoint) {
  fs::path largest;
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    if (largest.empty() || entry.file_size() > fs::file_size(largest)) largest = entry.path();
  }
  std::fstream file(largest, std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(fs::file_size(largest) / 2);
  file.seekg(middle);
  const int byte = file.get();
  file.seekp(middle);
  file.put(static_cast<char>(byte ^ 1));
}

}  // namespace

FaultInjector::FaultInjector(std::vector<spec::Fault> faults, int rank, int ranks, fs::path folder)
    : drill_(!faults.empty()), folder_(std::move(folder)) {
  std::multiset<std::string> past = happened(folder_);
  for (spec::Fault& fault : faults) {
    if (fault.rank >= ranks) {
      throw ConfigError(fmt::format("--inject \"{}\": there are only ranks 0 to {}", fault.text, ranks - 1));
    }
    if (fault.rank != 0 && (fault.moment == Moment::kPublishing || fault.moment == Moment::kPublished)) {
      throw ConfigError(fmt::format("--inject \"{}\": only rank 0 publishes checkpoints", fault.text));
    }
    if (const auto found = past.find(fault.text); found != past.end()) {
      past.erase(found);
    } else if (fault.rank == rank) {
      faults_.push_back({std::move(fault)});
    }
  }
}

void FaultInjector::remember(const spec::Fault& fault) const {
  const std::string line = nlohmann::json{{"fault", fault.text}, {"rank", fault.rank}}.dump() + "\n";
  const int file = ::open(history(folder_).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  const bool kept =
      file >= 0 && ::write(file, line.data(), line.size()) == static_cast<ssize_t>(line.size()) && ::fsync(file) == 0;
  if (file >= 0) ::close(file);
  if (!kept) log_warn("{} cannot be written: faults may happen again when the run goes on", history(folder_).string());
  log_warn("injected: {}", fault.text);
}

bool FaultInjector::happens(Armed& armed, Kind kind, std::int64_t step, Moment moment) {
  const spec::Fault& fault = armed.fault;
  const std::lock_guard lock(mutex_);
  if (armed.done || fault.kind != kind || fault.moment != moment || step < fault.step || step > fault.last_step) {
    return false;
  }
  armed.done = true;
  remember(fault);
  return true;
}

void FaultInjector::before_step(std::int64_t step, nn::State& state) {
  for (Armed& armed : faults_) {
    if (happens(armed, Kind::kFlipState, step)) {
      at::Tensor tensor = state.at(armed.fault.tensor).tensor;
      // A high bit of the mantissa of an element in the middle: large enough to be seen, small enough to go on.
      auto* bytes = static_cast<std::uint8_t*>(tensor.mutable_data_ptr());
      const auto element = static_cast<std::size_t>(tensor.element_size());
      bytes[static_cast<std::size_t>(tensor.numel() / 2) * element + element - 2] ^= 0x20;
    }
    if (happens(armed, Kind::kKill, step)) ::kill(::getpid(), SIGKILL);
    if (happens(armed, Kind::kClock, step)) {
      jump_wall_clock(std::chrono::duration<double>(armed.fault.duration).count());
    }
    if (happens(armed, Kind::kStall, step)) std::this_thread::sleep_for(armed.fault.duration);
    if (happens(armed, Kind::kHang, step)) {
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }
}

void FaultInjector::after_compute(std::int64_t step, double computed_s) {
  for (Armed& armed : faults_) {
    const spec::Fault& fault = armed.fault;
    if (fault.kind != Kind::kSlow || step < fault.step || step > fault.last_step) continue;
    const double longer_s = computed_s * (fault.factor - 1);
    std::this_thread::sleep_for(std::chrono::duration<double>(longer_s));
    slowed_s_ += longer_s;
  }
}

void FaultInjector::on_phase(checkpoint::SavePhase phase, std::int64_t step) {
  saving_step_ = step;
  if (phase == checkpoint::SavePhase::kWrite) return;  // before_write() is in the midst of it
  for (Armed& armed : faults_) {
    if (happens(armed, Kind::kKill, step, moment_of(phase))) ::kill(::getpid(), SIGKILL);
  }
}

void FaultInjector::before_write() {
  for (Armed& armed : faults_) {
    if (happens(armed, Kind::kKill, saving_step_, Moment::kWriting)) ::kill(::getpid(), SIGKILL);
    if (happens(armed, Kind::kDiskFull, saving_step_)) {
      throw IoError("an injected fault: no space left on device", "free some space, or keep fewer checkpoints");
    }
  }
}

void FaultInjector::published(const fs::path& checkpoint, std::int64_t step) {
  for (Armed& armed : faults_) {
    if (happens(armed, Kind::kFlipFile, step)) flip_bit_in(checkpoint);
  }
}

}  // namespace trireme::train

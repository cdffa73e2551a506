#include "trireme/comm/negotiator.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/log.h"

namespace trireme::comm {

Negotiator::Negotiator(Group& group, NegotiatorOptions options) : group_(group), options_(std::move(options)) {
  if (group_.rank() != 0) return;
  coordinator_.emplace(group_.size());
  if (options_.autotune.empty()) return;
  tuner_.emplace(options_.autotune, options_.autotune_samples);
  setting_changed_ = true;
}

Negotiator::~Negotiator() = default;

void Negotiator::all_reduce(const std::string& name, Buffer data) {
  TRIREME_CHECK(!stops_, "{} comes after finish()", name);
  TRIREME_CHECK(data.device.kind == DeviceKind::kCpu, "{} is not in host memory", name);
  const auto [found, fresh] = pending_.try_emplace(name);
  TRIREME_CHECK(fresh, "{} is already under way", name);
  found->second = {
      .tensor = {.name = name, .type = data.type, .count = data.count}, .data = data.data, .since = Clock::now()};
  if (options_.events != nullptr)
    found->second.lane = kFirstCallLane + lanes_.try_emplace(name, static_cast<int>(lanes_.size())).first->second;
  poll();
}

void Negotiator::poll() {
  while (advance(/*hurry=*/false)) {
  }
}

std::vector<std::string> Negotiator::done() const {
  std::vector<std::string> names;
  for (const auto& [name, one] : pending_) {
    if (one.done) names.push_back(name);
  }
  return names;
}

void Negotiator::tell(const Pending& tensor, const char* phase, Clock::time_point begin, Clock::time_point end) const {
  if (options_.events == nullptr) return;
  options_.events->span({.name = phase,
                         .category = "negotiator",
                         .detail = tensor.tensor.name,
                         .rank = group_.rank(),
                         .lane = tensor.lane,
                         .begin = begin,
                         .end = end});
}

void Negotiator::wait(const std::string& name) {
  const auto found = pending_.find(name);
  TRIREME_CHECK(found != pending_.end(), "{} is not under way", name);
  while (!found->second.done) advance(/*hurry=*/true);
  const std::string refused = std::move(found->second.refused);
  pending_.erase(found);
  if (refused.empty()) return;
  throw CommError(fmt::format("all_reduce of '{}' on group '{}': {}", name, group_.name(), refused),
                  "a name must stand for the same tensor on all ranks");
}

void Negotiator::wait_all() {
  while (!pending_.empty()) wait(pending_.begin()->first);
}

void Negotiator::finish() {
  wait_all();
  stops_ = true;
  while (!stopped_) advance(/*hurry=*/true);
}

/// Something that bits do not say.
bool Negotiator::has_news() const {
  if (stops_ || setting_changed_ || forget_) return true;
  return std::ranges::any_of(pending_, [&](const auto& entry) {
    const Pending& one = entry.second;
    return !one.told && !one.summing && !one.done && !place_.contains(entry.first);
  });
}

/// One step further; false where there is nothing to do but wait. With `hurry` it waits.
bool Negotiator::advance(bool hurry) {
  bool settled = settle_sums();
  if (hurry && !settled && !sums_.empty()) {
    // Before anything new is asked of the others: they may have what they wait for, and not be back for long.
    sums_.front().work.wait();
    settled = settle_sums();
  }
  if (hurry && settled) return true;
  if (phase_ == Phase::kIdle) {
    const bool idle = pending_.empty() && !stops_ && !options_.cycles_when_idle;
    if (stopped_ || idle) return settled;
    const Clock::time_point next = last_cycle_ + options_.cycle;
    if (Clock::now() < next) {
      if (!hurry) return settled;
      std::this_thread::sleep_until(next);
    }
    begin_cycle();
    return true;
  }
  if (hurry) {
    control_.wait();
  } else if (!control_.test()) {
    return settled;
  }
  control_ = {};
  switch (phase_) {
    case Phase::kIdle:
      break;
    case Phase::kBits:
      take_bits();
      break;
    case Phase::kSizes:
      send_report();
      break;
    case Phase::kReports:
      answer();
      break;
    case Phase::kAnswerSize:
      answer_.resize(static_cast<std::size_t>(size_));
      phase_ = Phase::kAnswer;
      control_ = group_.broadcast(Buffer{answer_.data(), answer_.size(), DType::kU8}, 0);
      break;
    case Phase::kAnswer:
      take_answer();
      break;
  }
  return true;
}

/// One byte for "nothing by name", then one for each remembered name: the least of all ranks' is what all can do.
void Negotiator::begin_cycle() {
  last_cycle_ = Clock::now();
  if (coordinator_) tell_stalls(last_cycle_);
  // One of the cache that others do not have for long goes through the coordinator, who can name them.
  for (auto& [name, one] : pending_) {
    if (!one.told && !one.summing && !one.done && place_.contains(name) && last_cycle_ - one.since > options_.stall)
      forget_ = true;
  }
  bits_.assign(1 + remembered_.size(), 0);
  bits_[0] = has_news() ? 0 : 1;
  for (const auto& [name, one] : pending_) {
    const auto found = place_.find(name);
    if (found == place_.end() || one.told || one.summing || one.done) continue;
    bits_[1 + found->second] = remembered_[found->second] == one.tensor ? 1 : 0;
    if (bits_[1 + found->second] == 0) forget_ = true, bits_[0] = 0;  // another shape under a remembered name
  }
  phase_ = Phase::kBits;
  control_ = group_.all_reduce(Buffer{bits_.data(), bits_.size(), DType::kU8}, Reduce::kMin);
}

void Negotiator::take_bits() {
  ++counters_.cycles;
  std::vector<ReadyTensor> ready;
  for (std::size_t i = 0; i < remembered_.size(); ++i) {
    if (bits_[1 + i] == 1) ready.push_back(remembered_[i]);
  }
  counters_.cached += static_cast<std::int64_t>(ready.size());
  start_sums(ready);
  if (bits_[0] == 1) {
    phase_ = Phase::kIdle;
    return;
  }
  ++counters_.negotiated;
  ReadyReport report{.ready = {}, .stops = stops_ && pending_.empty()};
  for (auto& [name, one] : pending_) {
    if (one.told || one.summing || one.done || (place_.contains(name) && !forget_)) continue;
    report.ready.push_back(one.tensor);
    one.told = true;
  }
  report_ = to_bytes(report);
  report_.push_back(static_cast<std::byte>(forget_));
  size_ = static_cast<std::int64_t>(report_.size());
  sizes_.assign(static_cast<std::size_t>(group_.size()), 0);
  phase_ = Phase::kSizes;
  control_ = group_.all_gather(ConstBuffer{&size_, 1, DType::kI64}, Buffer{sizes_.data(), sizes_.size(), DType::kI64});
}

void Negotiator::send_report() {
  std::vector<std::size_t> counts(sizes_.begin(), sizes_.end());
  std::size_t all = 0;
  for (const std::size_t count : counts) all += count;
  reports_.resize(coordinator_ ? all : 0);
  phase_ = Phase::kReports;
  control_ = group_.gather_v(ConstBuffer{report_.data(), report_.size(), DType::kU8},
                             Buffer{reports_.data(), reports_.size(), DType::kU8}, counts, 0);
}

/// Rank 0 says what happens; the others hear how long that is.
void Negotiator::answer() {
  if (coordinator_) {
    const Clock::time_point now = Clock::now();
    bool forget = false;
    std::size_t begin = 0;
    for (std::size_t rank = 0; rank < sizes_.size(); ++rank) {
      const auto size = static_cast<std::size_t>(sizes_[rank]);
      const auto part = std::span(reports_).subspan(begin, size);
      coordinator_->report(static_cast<int>(rank), report_from(part.first(size - 1)), now);
      forget = forget || part.back() != std::byte{0};
      begin += size;
    }
    Agreement agreement = coordinator_->agree();
    agreement.forget = forget;
    const CycleTuner::Setting now_set = tuner_ ? tuner_->setting() : setting();
    agreement.fusion_bytes = now_set.fusion_bytes;
    agreement.cycle = now_set.cycle;
    setting_changed_ = false;
    answer_ = to_bytes(agreement);
    size_ = static_cast<std::int64_t>(answer_.size());
  }
  phase_ = Phase::kAnswerSize;
  control_ = group_.broadcast(Buffer{&size_, 1, DType::kI64}, 0);
}

void Negotiator::take_answer() {
  phase_ = Phase::kIdle;
  const Agreement agreement = agreement_from(answer_);
  options_.fusion_bytes = agreement.fusion_bytes;
  options_.cycle = agreement.cycle;
  stopped_ = agreement.stop;
  forget_ = false;
  if (agreement.forget) {
    remembered_.clear();
    place_.clear();
  }
  for (const Agreement::Refused& one : agreement.refused) {
    Pending& mine = pending_.at(one.name);
    mine.refused = one.why;
    mine.done = true;
  }
  if (options_.cache) {
    for (const ReadyTensor& tensor : agreement.sums) {
      if (place_.try_emplace(tensor.name, remembered_.size()).second) remembered_.push_back(tensor);
    }
  }
  start_sums(agreement.sums);
}

void Negotiator::start_sums(const std::vector<ReadyTensor>& tensors) {
  for (const std::vector<std::size_t>& group : fuse(tensors, options_.fusion_bytes)) {
    Sum& sum = sums_.emplace_back();
    std::size_t count = 0;
    for (const std::size_t i : group) {
      Pending& one = pending_.at(tensors[i].name);
      one.summing = true;
      sum.members.push_back(&one);
      sum.bytes += tensors[i].bytes();
      count += tensors[i].count;
    }
    const Clock::time_point agreed = Clock::now();
    for (const Pending* one : sum.members) tell(*one, "negotiate", one->since, agreed);
    void* data = sum.members.front()->data;
    sum.started = agreed;
    if (sum.members.size() > 1) {
      sum.buffer.resize(sum.bytes);
      std::size_t at = 0;
      for (const Pending* one : sum.members) {
        std::memcpy(sum.buffer.data() + at, one->data, one->tensor.bytes());
        at += one->tensor.bytes();
      }
      data = sum.buffer.data();
      sum.started = Clock::now();
      for (const Pending* one : sum.members) tell(*one, "fuse", agreed, sum.started);
    }
    sum.work = group_.all_reduce(Buffer{data, count, sum.members.front()->tensor.type}, Reduce::kSum);
    ++counters_.collectives;
    counters_.tensors += static_cast<std::int64_t>(sum.members.size());
  }
}

/// Whether one was.
bool Negotiator::settle_sums() {
  bool any = false;
  while (!sums_.empty() && sums_.front().work.test()) {
    Sum& sum = sums_.front();
    const Clock::time_point summed = Clock::now();
    std::size_t at = 0;
    for (Pending* one : sum.members) {
      if (!sum.buffer.empty()) std::memcpy(one->data, sum.buffer.data() + at, one->tensor.bytes());
      at += one->tensor.bytes();
      one->done = true;
      tell(*one, "all_reduce", sum.started, summed);
      if (!sum.buffer.empty()) tell(*one, "unfuse", summed, Clock::now());
    }
    tuned_bytes_ += static_cast<double>(sum.bytes);
    sums_.pop_front();
    any = true;
  }
  if (any && sums_.empty()) tune();
  return any;
}

void Negotiator::tune() {
  if (!tuner_ || tuner_->done()) return;
  const Clock::time_point now = Clock::now();
  if (tuned_since_ != Clock::time_point()) {
    const double seconds = std::chrono::duration<double>(now - tuned_since_).count();
    setting_changed_ = tuner_->score(tuned_bytes_, seconds) || setting_changed_;
  }
  tuned_since_ = now;
  tuned_bytes_ = 0;
}

void Negotiator::tell_stalls(Clock::time_point now) {
  for (const std::string& line : coordinator_->stalled(now, options_.stall)) {
    const std::string name = line.substr(0, line.find(" has been"));
    if (std::ranges::find(told_stalls_, name) != told_stalls_.end()) continue;
    told_stalls_.push_back(name);
    if (options_.on_stall) {
      options_.on_stall(line);
    } else {
      log_warn("all_reduce on group '{}': {}", group_.name(), line);
    }
  }
}

}  // namespace trireme::comm

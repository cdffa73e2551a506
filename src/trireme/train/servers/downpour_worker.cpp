#include "trireme/train/servers/downpour_worker.h"

#include <algorithm>
#include <chrono>

#include "trireme/base/log.h"
#include "trireme/base/stopwatch.h"

namespace trireme::train {
namespace {

using WorkerClock = std::chrono::steady_clock;

/// Values in the servers' type: what is pushed and pulled has the masters' precision.
std::vector<std::byte> pack_values(const std::vector<double>& values, ps::ValueType type) {
  if (type == ps::ValueType::kF64) return ps::to_bytes(std::span(values));
  const std::vector<float> narrow(values.begin(), values.end());
  return ps::to_bytes(std::span(narrow));
}
std::vector<double> unpack_values(const std::vector<std::byte>& bytes, ps::ValueType type) {
  if (type == ps::ValueType::kF64) return ps::from_bytes<double>(bytes);
  const std::vector<float> narrow = ps::from_bytes<float>(bytes);
  return {narrow.begin(), narrow.end()};
}

}  // namespace

ps::Filters push_filters(const spec::Recipe& recipe) {
  const spec::DownpourConfig& downpour = recipe.downpour;
  return {.encoding = downpour.encoding == spec::PushEncoding::kZstd      ? ps::Encoding::kZstd
                      : downpour.encoding == spec::PushEncoding::kFixed16 ? ps::Encoding::kFixed16
                                                                          : ps::Encoding::kRaw,
          .significant = downpour.significant,
          .skip = downpour.skip,
          .seed = static_cast<std::uint64_t>(recipe.run.seed)};
}

void warn_of_staleness(const spec::OptimConfig& optim, std::uint64_t tau) {
  if (optim.kind != spec::OptimizerKind::kSgd) return;  // Adagrad's steps shrink by themselves
  if (optim.learning_rate * static_cast<double>(std::min<std::uint64_t>(tau, 16)) <= 1) return;
  log_warn("learning rate {} with up to {} pushes on their way: their product is above 1, and may diverge",
           optim.learning_rate, tau);
}

DownpourWorker::DownpourWorker(comm::Mailbox& mailbox, Replica& replica, const DownpourPace& pace, Computed computed)
    : replica_(replica),
      pace_(pace),
      computed_(std::move(computed)),
      client_(mailbox, {.address = mailbox.address(),
                        .keys = replica.keys(),
                        .type = pace.type,
                        .filters = pace.filters,
                        .part_bytes = std::size_t{1} << 40}),  // whole pushes: a version is one of them
      delay_(pace.tau),
      all_{{0, replica.keys()}},
      accrued_(replica.keys()) {
  if (!pace.filters.keeps_all()) filter_.emplace(pace.filters, mailbox.address(), pace.type, replica.keys());
}

void DownpourWorker::assign(const std::vector<double>& weights, const std::vector<std::vector<double>>& planes) {
  client_.wait(client_.push({all_, pack_values(weights, pace_.type), 0, ps::Message::Op::kAssign}));
  for (std::size_t i = 0; i < planes.size(); ++i) {
    if (std::ranges::all_of(planes[i], [](double value) { return value == 0; })) continue;  // as servers begin
    client_.wait(
        client_.push({all_, pack_values(planes[i], pace_.type), 0, ps::Message::Op::kAssign, static_cast<int>(i) + 1}));
  }
}

std::vector<double> DownpourWorker::fetch(int plane) {
  return unpack_values(client_.take(client_.pull({all_, plane})), pace_.type);
}

void DownpourWorker::take(const spec::Position& at, int part) {
  if (!replica_.has_rows(at, part)) return;
  while (!delay_.may_begin()) finish(open_.begin()->first);
  JournalEntry& entry = journal_.emplace_back(JournalEntry{.at = at, .part = part});
  const std::uint64_t clock = delay_.begin();
  if (taken_ % pace_.n_fetch == 0) {
    const auto pulled = client_.pull({all_});
    weights_ = unpack_values(client_.take(pulled), pace_.type);
    entry.fetched = client_.worker().take_versions(pulled);
  }
  replica_.set_weights(weights_);
  const auto begin = WorkerClock::now();
  const Replica::Gradient gradient = replica_.compute(at, part);
  if (computed_) computed_(gradient, seconds_since(begin));
  entry.learning_rate = last_rate_ = gradient.learning_rate * pace_.rate_factor;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    accrued_[i] += gradient.values[i];
    weights_[i] -= entry.learning_rate * gradient.values[i];
  }
  if (++taken_ % pace_.n_push == 0) {
    entry.pushes = true;
    push(entry.learning_rate, /*everything=*/false);
    open_[clock] = {last_push_, journal_.size() - 1};
  } else {
    delay_.done(clock);
  }
}

void DownpourWorker::push(double learning_rate, bool everything) {
  std::vector<std::byte> values = pack_values(accrued_, pace_.type);
  std::ranges::fill(accrued_, 0.0);
  ++pushes_;
  if (!filter_) {
    last_push_ = client_.push({all_, std::move(values), learning_rate});
    return;
  }
  ps::ResidualFilter::Sent sent = everything ? filter_->flush(all_, values) : filter_->apply(pushes_, all_, values);
  last_push_ = client_.push({std::move(sent.segments), std::move(sent.values), learning_rate});
}

void DownpourWorker::finish(std::uint64_t clock) {
  const auto [task, entry] = open_.at(clock);
  client_.wait(task);
  JournalEntry& at = journal_[entry];
  at.pushed = client_.worker().take_versions(task);
  if (!at.fetched.empty() && !at.pushed.empty()) {
    const std::uint64_t before = at.pushed.begin()->second - 1;
    at.stale = before - std::min(before, at.fetched.begin()->second);
  }
  open_.erase(clock);
  delay_.done(clock);
}

void DownpourWorker::settle() {
  if (taken_ > 0 && (filter_ || taken_ % pace_.n_push != 0)) {
    push(last_rate_, /*everything=*/true);
    client_.wait(last_push_);
    journal_.back().flushes = true;
    journal_.back().flushed = client_.worker().take_versions(last_push_);
  }
  while (!open_.empty()) finish(open_.begin()->first);
  taken_ = 0;
}

}  // namespace trireme::train

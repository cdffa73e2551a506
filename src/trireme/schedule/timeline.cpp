#include "trireme/schedule/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/schedule/draw_parts.h"
#include "trireme/schedule/wiring.h"

namespace trireme::schedule {
namespace {

double median(std::vector<double> numbers) {
  if (numbers.empty()) return 0;
  const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::ranges::nth_element(numbers, middle);
  return *middle;
}

bool computes(Op op) { return !is_transfer(op) && op != Op::kReduceGradients; }

/// When each rank came to its updates: no update can have begun before the last of them.
std::vector<double> meetings(const Timeline& timeline) {
  std::vector<double> last;
  for (const auto& spans : timeline.ranks) {
    std::size_t update = 0;
    for (const Span& span : spans) {
      if (span.instruction.op != Op::kOptimizerStep) continue;
      if (update == last.size()) last.push_back(span.start);
      last[update] = std::max(last[update], span.start);
      ++update;
    }
  }
  return last;
}

}  // namespace

double Timeline::seconds() const {
  double first = 0, last = 0;
  bool any = false;
  for (const auto& spans : ranks) {
    if (spans.empty()) continue;
    first = any ? std::min(first, spans.front().start) : spans.front().start;
    last = any ? std::max(last, spans.back().end) : spans.back().end;
    any = true;
  }
  return last - first;
}

Timing Timeline::timing() const {
  Timing timing{.makespan = seconds()};
  for (const auto& spans : ranks) {
    RankTiming& rank = timing.ranks.emplace_back();
    for (const Span& span : spans) {
      if (!computes(span.instruction.op)) continue;
      if (rank.spans.empty()) rank.first_start = span.start;
      rank.busy += span.end - span.start;
      rank.last_end = span.end;
      rank.spans.push_back(span);
    }
  }
  return timing;
}

Calibration::Calibration(const Schedule& schedule) : schedule_(schedule) {
  TRIREME_CHECK(has_transfers(schedule) || schedule.ranks.size() == 1, "schedule {} has no transfers to calibrate",
                schedule.name);
}

void Calibration::add(const Timeline& measured) {
  if (measured.ranks.size() != schedule_.ranks.size()) {
    throw ConfigError(fmt::format("a step of {} ranks is not of schedule {}, which has {}", measured.ranks.size(),
                                  schedule_.name, schedule_.ranks.size()));
  }
  const Wiring wiring = wire(schedule_);
  std::vector<std::vector<double>> posted(wiring.channels.size());  // by channel and sequence
  for (std::size_t channel = 0; channel < posted.size(); ++channel)
    posted[channel].resize(wiring.channels[channel].sends.size());
  for (std::size_t rank = 0; rank < measured.ranks.size(); ++rank) {
    const auto& list = schedule_.ranks[rank];
    if (measured.ranks[rank].size() != list.size()) {
      throw ConfigError(fmt::format("rank {} executed {} instructions, but schedule {} has {} for it", rank,
                                    measured.ranks[rank].size(), schedule_.name, list.size()));
    }
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!is_send(list[i].op)) continue;
      const TransferId& message = wiring.messages[rank][i];
      posted[static_cast<std::size_t>(message.channel)][static_cast<std::size_t>(message.sequence)] =
          measured.ranks[rank][i].start;
    }
  }
  const std::vector<double> meet = meetings(measured);
  for (std::size_t rank = 0; rank < measured.ranks.size(); ++rank) {
    std::size_t update = 0;
    for (std::size_t i = 0; i < measured.ranks[rank].size(); ++i) {
      const Instruction& it = schedule_.ranks[rank][i];
      const Span& span = measured.ranks[rank][i];
      const Key key{static_cast<int>(rank), to_text(it, true)};
      if (it.op == Op::kOptimizerStep) {
        own_[key].push_back(std::max(0.0, span.end - meet[update++]));
      } else if (it.op == Op::kWaitRecvActivation || it.op == Op::kWaitRecvGradient) {
        const TransferId& message = wiring.messages[rank][i];
        const auto channel = static_cast<std::size_t>(message.channel);
        const double sent = posted[channel][static_cast<std::size_t>(message.sequence)];
        if (span.start <= sent) {  // it stood waiting: all of the rest is the message's
          const int from = wiring.channels[channel].from;
          links_[{from, it.op == Op::kWaitRecvActivation ? "activation" : "gradient"}].push_back(span.end - sent);
          all_links_.push_back(span.end - sent);
        } else {
          own_[key].push_back(span.end - span.start);
        }
      } else if (computes(it.op) || is_send(it.op) || is_recv(it.op)) {
        own_[key].push_back(span.end - span.start);
      }
    }
  }
}

double Calibration::median_of(int rank, const Instruction& instruction) const {
  const auto found = own_.find({rank, to_text(instruction, true)});
  if (found == own_.end()) return 0;
  const std::vector<double>& times = found->second;
  // Parts of the same name are those of several mixtures, forward and back: together they take what they took.
  if (is_part(instruction.op))
    return std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
  return median(times);
}

ReplayOptions Calibration::ideal() const {
  return {.time_of = [this](int rank, const Instruction& it) { return computes(it.op) ? median_of(rank, it) : 0.0; },
          .updates_together = true,
          .link_of = [](int, int, const Instruction&) { return 0.0; }};
}

ReplayOptions Calibration::options() const {
  ReplayOptions options = ideal();
  options.transfer_of = [this](int rank, const Instruction& it) { return median_of(rank, it); };
  options.link_of = [this](int from, int, const Instruction& send) {
    const auto found = links_.find({from, send.op == Op::kSendActivation ? "activation" : "gradient"});
    return median(found == links_.end() ? all_links_ : found->second);
  };
  return options;
}

std::string to_svg(const Comparison& comparison) {
  constexpr double kWidth = 1100, kMilliseconds = 1e3;
  const auto scaled = [&](Timing timing) {
    timing.makespan *= kMilliseconds;
    for (RankTiming& rank : timing.ranks) {
      rank.busy *= kMilliseconds;
      for (Span& span : rank.spans) {
        span.start *= kMilliseconds;
        span.end *= kMilliseconds;
      }
    }
    return timing;
  };
  const Timing measured = scaled(comparison.measured.timing()), predicted = scaled(comparison.predicted);
  const double scale = kWidth / std::max({measured.makespan, predicted.makespan, 1e-9});
  const double ratio = predicted.makespan > 0 ? measured.makespan / predicted.makespan : 0;
  const std::string under = comparison.caption.empty() ? "" : "; " + comparison.caption;
  const Picture upper = draw_scaled({comparison.schedule, measured, "measured, in ms" + under}, scale);
  const Picture lower = draw_scaled(
      {comparison.schedule, predicted, fmt::format("replayed, in ms; measured / replayed = {:.3f}", ratio)}, scale);
  return fmt::format(
             R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}">)",
             std::max(upper.width, lower.width), upper.height + lower.height) +
         "\n" + upper.svg + fmt::format("<g transform=\"translate(0 {:.0f})\">\n", upper.height) + lower.svg +
         "</g>\n</svg>\n";
}

std::string to_json(const MeasuredTable& measured) {
  nlohmann::ordered_json json;
  json["schedule"] = nlohmann::ordered_json::parse(to_json(measured.schedule));
  auto& executions = json["executions"] = nlohmann::ordered_json::array();
  for (const Timeline& execution : measured.executions) {
    auto& ranks = executions.emplace_back(nlohmann::ordered_json::array());
    for (const auto& spans : execution.ranks) {
      auto& list = ranks.emplace_back(nlohmann::ordered_json::array());
      for (const Span& span : spans) list.push_back({span.start, span.end});
    }
  }
  return json.dump() + "\n";
}

MeasuredTable read_measured(std::string_view text) {
  try {
    const auto json = nlohmann::json::parse(text);
    MeasuredTable measured{.schedule = from_json(json.at("schedule").dump()), .executions = {}};
    for (const auto& ranks : json.at("executions")) {
      Timeline& execution = measured.executions.emplace_back();
      for (const auto& list : ranks) {
        auto& spans = execution.ranks.emplace_back();
        const std::size_t rank = execution.ranks.size() - 1;
        if (rank >= measured.schedule.ranks.size() || list.size() != measured.schedule.ranks[rank].size()) {
          throw ConfigError(fmt::format("the times of rank {} are not those of its list", rank));
        }
        for (const auto& span : list) {
          spans.push_back(
              {measured.schedule.ranks[rank][spans.size()], span.at(0).get<double>(), span.at(1).get<double>()});
        }
      }
      if (execution.ranks.size() != measured.schedule.ranks.size()) {
        throw ConfigError(fmt::format("a step has times of {} ranks, but the schedule has {}", execution.ranks.size(),
                                      measured.schedule.ranks.size()));
      }
    }
    if (measured.executions.empty()) throw ConfigError("the file holds no step of its schedule");
    return measured;
  } catch (const nlohmann::json::exception& failure) {
    throw ConfigError(
        fmt::format("this is no measured schedule: {}", failure.what()),
        "it has a schedule and \"executions\": for each step, rank and instruction begin and end in seconds");
  }
}

}  // namespace trireme::schedule

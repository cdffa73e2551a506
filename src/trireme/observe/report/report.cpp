#include "trireme/observe/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "trireme/base/html.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/observe/expert_loads.h"
#include "trireme/observe/lr_range.h"
#include "trireme/observe/queues.h"
#include "trireme/observe/report/chart.h"
#include "trireme/observe/report/facts.h"
#include "trireme/observe/report/page.h"
#include "trireme/observe/report/time_to_loss.h"
#include "trireme/observe/traffic_saved.h"

namespace trireme::observe {
namespace {

constexpr const char* kUnknown = "–";
constexpr std::size_t kEnoughToSmooth = 30;  // points; fewer are shown as they are

struct Named {
  const RunFiles* run;
  Facts facts;
  int color;
};

/// Folders of one name keep so much of their path that they differ.
std::vector<Named> named(std::span<const RunFiles> runs) {
  std::vector<Named> out;
  for (const RunFiles& run : runs) out.push_back({&run, facts_of(run), static_cast<int>(out.size()) % kColors});
  std::vector<std::string> names;
  for (const Named& one : out) names.push_back(one.facts.name);
  for (Named& one : out) {
    if (std::ranges::count(names, one.facts.name) > 1) one.facts.name = one.run->dir.string();
  }
  return out;
}

struct Fact {
  std::string title, value, remark;
};

template <typename Value, typename Write>
std::string or_unknown(const std::optional<Value>& value, Write&& write) {
  return value ? std::string(write(*value)) : kUnknown;
}

std::vector<Fact> rows_of(const Facts& facts) {
  const auto count = [](auto value) { return short_count(static_cast<double>(value)); };
  const auto loss = [](double value) { return fmt::format("{:.4f}", value); };
  const std::string of_steps =
      facts.steps_asked && facts.steps_asked != facts.steps ? fmt::format("of {}", *facts.steps_asked) : "";
  const std::string best = facts.best_eval_loss && facts.best_eval_loss != facts.eval_loss
                               ? fmt::format("best {}", loss(*facts.best_eval_loss))
                               : "";
  return {
      {"Model", facts.model.value_or(kUnknown), facts.precision.value_or("")},
      {"Parameters", or_unknown(facts.parameters, count), ""},
      {"Ranks", or_unknown(facts.ranks, [](auto ranks) { return fmt::format("{}", ranks); }), ""},
      {"Steps", or_unknown(facts.steps, [](auto steps) { return fmt::format("{}", steps); }), of_steps},
      {"Tokens", or_unknown(facts.tokens, count), ""},
      {"Final loss", or_unknown(facts.loss, loss),
       facts.loss ? fmt::format("mean of {}", counted(static_cast<std::size_t>(facts.loss_steps), "step")) : ""},
      {"Validation loss", or_unknown(facts.eval_loss, loss), best},
      {"Tokens/s", or_unknown(facts.tokens_per_s, count), facts.tokens_per_s ? "median" : ""},
      {"MFU", or_unknown(facts.mfu, [](double mfu) { return fmt::format("{:.1f} %", mfu * 100); }),
       facts.mfu     ? "median"
       : facts.steps ? "peak not measured"
                     : ""},
      {"Peak memory", or_unknown(facts.memory, [](auto bytes) { return short_bytes(static_cast<double>(bytes)); }), ""},
      {"Time in steps", or_unknown(facts.seconds, short_seconds),
       facts.resumes > 0 ? fmt::format("resumed {}", counted(facts.resumes, "time")) : ""},
      {"State", facts.ended.value_or(facts.steps ? "unfinished" : kUnknown), ""},
  };
}

std::string tiles(const Named& one) {
  std::string out = "<dl class=\"facts\">";
  for (const Fact& fact : rows_of(one.facts)) {
    const std::string remark = fact.remark.empty() ? "" : fmt::format("<small>{}</small>", escaped(fact.remark));
    out += fmt::format("<div><dt>{}</dt><dd>{}{}</dd></div>\n", fact.title, escaped(fact.value), remark);
  }
  return out + "</dl>\n";
}

std::string table(const std::vector<Named>& runs) {
  std::string head = "<th>Run</th>", body;
  for (const Fact& fact : rows_of(runs[0].facts)) head += fmt::format("<th>{}</th>", fact.title);
  for (const Named& one : runs) {
    body += fmt::format("<tr><th><i class=\"key box k{}\"></i>{}</th>", one.color, escaped(one.facts.name));
    for (const Fact& fact : rows_of(one.facts)) body += fmt::format("<td>{}</td>", escaped(fact.value));
    body += "</tr>\n";
  }
  return fmt::format("<div class=\"scroll\"><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>\n", head,
                     body);
}

std::string notes(const std::vector<Named>& runs) {
  std::string out;
  for (const Named& one : runs) {
    for (const std::string& note : one.run->notes) {
      out += fmt::format("<p><b>{}</b>: {}</p>", escaped(one.facts.name), escaped(note));
    }
  }
  return out.empty() ? "" : fmt::format("<div class=\"notes\">{}</div>\n", out);
}

Curve curve_of(const RunFiles& run, const std::function<double(const StepRecord&)>& value) {
  Curve curve;
  curve.reserve(run.steps.size());
  for (const StepRecord& step : run.steps) curve.push_back({static_cast<double>(step.step), value(step)});
  return curve;
}

class Charts {
 public:
  explicit Charts(const std::vector<Named>& runs) : runs_(runs) {
    low_ = INFINITY;
    high_ = -INFINITY;
    for (const Named& one : runs) {
      if (one.run->steps.empty()) continue;
      low_ = std::min(low_, static_cast<double>(one.run->steps.front().step));
      high_ = std::max(high_, static_cast<double>(one.run->steps.back().step));
    }
    if (low_ > high_) low_ = 0, high_ = 1;
    if (low_ == 1) low_ = 0;  // a run from its beginning: the axis begins at a round number
  }

  std::string loss() const {
    Chart chart = begin("Loss", Quantity::kPlain);
    chart.unit = "nats per token";
    chart.wide = chart.legend = true;
    for (const Named& one : runs_) {
      add_loss(chart, one);
      add_problems(chart, one);
    }
    add_resumes(chart);
    return to_html(std::move(chart));
  }

  /// The first steps of a run take most of the axis: what matters later is seen only without them.
  std::string late_loss() const {
    const double from = std::floor((low_ + high_) / 2);
    Chart chart = begin(fmt::format("Loss from step {} on", from), Quantity::kPlain);
    chart.x_low = from;
    bool enough = false;
    for (const Named& one : runs_) {
      add_loss(chart, one);
      const auto late = std::ranges::count_if(
          one.run->steps, [&](const StepRecord& step) { return static_cast<double>(step.step) >= from; });
      enough = enough || static_cast<std::size_t>(late) >= kEnoughToSmooth;
    }
    return enough ? to_html(std::move(chart)) : "";
  }

  /// Curves of runs that are meant to be alike lie upon each other: how far the others are from the first, in parts of
  /// its loss.
  std::string loss_beside_first() const {
    if (runs_.size() < 2) return "";
    std::map<std::int64_t, double> first;
    for (const StepRecord& step : runs_[0].run->steps) first[step.step] = step.loss;
    Chart chart = begin(fmt::format("Loss beside {}", runs_[0].facts.name), Quantity::kFraction);
    chart.unit = "smoothed";
    for (std::size_t i = 1; i < runs_.size(); ++i) {
      Curve apart;
      for (const StepRecord& step : runs_[i].run->steps) {
        const auto other = first.find(step.step);
        if (other != first.end() && other->second > 0) {
          apart.push_back({static_cast<double>(step.step), step.loss / other->second - 1});
        }
      }
      if (apart.size() < kEnoughToSmooth) continue;
      Curve even = smoothed(apart, (apart.back().x - apart.front().x) / 20);
      chart.series.push_back({.name = runs_[i].facts.name,
                              .color = runs_[i].color,
                              .look = Series::Look::kLine,
                              .points = std::move(even)});
    }
    return chart.series.empty() ? "" : to_html(std::move(chart));
  }

  /// What runs with steps of different length have in common.
  std::string loss_by_time() const {
    if (runs_.size() < 2) return "";
    Chart chart = begin("Loss by time", Quantity::kPlain);
    chart.unit = "nats per token";
    chart.by_time = true;
    chart.x_low = chart.x_high = 0;
    for (const Named& one : runs_) {
      Curve curve = observe::loss_by_time(one.run->steps);
      if (curve.empty()) continue;
      chart.x_high = std::max(chart.x_high, curve.back().x);
      add_with_smooth(chart, one.facts.name, one.color, std::move(curve));
    }
    return chart.series.empty() || chart.x_high <= 0 ? "" : to_html(std::move(chart));
  }

  enum class Noise : bool { kNone, kSmoothed };
  std::string of(const char* title, const char* unit, Quantity quantity, Noise noise,
                 const std::function<double(const StepRecord&)>& value) const {
    Chart chart = begin(title, quantity);
    chart.unit = unit;
    chart.from_zero = true;
    for (const Named& one : runs_) {
      Curve curve = curve_of(*one.run, value);
      if (noise == Noise::kSmoothed) {
        add_with_smooth(chart, one.facts.name, one.color, std::move(curve));
      } else if (!curve.empty()) {
        chart.series.push_back(
            {.name = one.facts.name, .color = one.color, .look = Series::Look::kLine, .points = std::move(curve)});
      }
    }
    return chart.series.empty() ? "" : to_html(std::move(chart));
  }

  std::string breakdown(const Named& one) const {
    Chart chart =
        begin(runs_.size() > 1 ? fmt::format("Step time: {}", one.facts.name) : "Step time", Quantity::kSeconds);
    chart.from_zero = chart.legend = true;
    chart.wide = runs_.size() == 1;
    const auto part = [&](const char* name, int color, double Breakdown::*member) {
      chart.series.push_back(
          {.name = name,
           .color = color,
           .look = Series::Look::kArea,
           .points = curve_of(*one.run, [&](const StepRecord& step) { return step.breakdown.*member; })});
    };
    part("compute", 0, &Breakdown::compute);
    part("communication", 1, &Breakdown::comm);
    part("data", 4, &Breakdown::data);
    part("overhead", 7, &Breakdown::overhead);
    return one.run->steps.empty() ? "" : to_html(std::move(chart));
  }

 private:
  Chart begin(std::string title, Quantity quantity) const {
    Chart chart;
    chart.title = std::move(title);
    chart.quantity = quantity;
    chart.legend = false;  // the runs' colours stand at the head of the page
    chart.x_low = low_;
    chart.x_high = high_;
    return chart;
  }

  /// The curve, and where it has many points, faint behind what it is like without noise.
  static void add_with_smooth(Chart& chart, std::string name, int color, Curve raw, std::string raw_name = "") {
    if (std::ranges::none_of(raw, [](const Point& point) { return std::isfinite(point.y); })) return;
    if (raw.size() < kEnoughToSmooth) {
      chart.series.push_back(
          {.name = std::move(name), .color = color, .look = Series::Look::kLine, .points = std::move(raw)});
      return;
    }
    Curve even = smoothed(raw, (raw.back().x - raw.front().x) / 100);
    for (Curve* curve : {&raw, &even}) {  // after smoothing, so that a later beginning changes nothing else
      std::erase_if(*curve, [&](const Point& point) { return point.x < chart.x_low; });
    }
    chart.series.push_back(
        {.name = std::move(raw_name), .color = color, .look = Series::Look::kFaint, .points = std::move(raw)});
    chart.series.push_back(
        {.name = std::move(name), .color = color, .look = Series::Look::kLine, .points = std::move(even)});
  }

  void add_loss(Chart& chart, const Named& one) const {
    const bool alone = runs_.size() == 1;
    Curve raw = curve_of(*one.run, [](const StepRecord& step) { return step.loss; });
    const bool both = alone && raw.size() >= kEnoughToSmooth;
    add_with_smooth(chart,
                    both    ? "training, smoothed"
                    : alone ? "training"
                            : one.facts.name,
                    one.color, std::move(raw), both ? "training" : "");
    Curve evals;
    for (const EventRecord* event : one.run->events_of("eval")) {
      const auto step = event->step();
      const auto loss = event->number_of("loss");
      if (step && loss && static_cast<double>(*step) >= chart.x_low)
        evals.push_back({static_cast<double>(*step), *loss});
    }
    std::ranges::sort(evals, {}, &Point::x);
    if (evals.empty()) return;
    if (!alone) chart.unit = "nats per token; dots: validation";
    chart.series.push_back({.name = alone ? "validation" : one.facts.name + ", validation",
                            .color = alone ? 1 : one.color,
                            .look = Series::Look::kDots,
                            .points = std::move(evals),
                            .listed = alone});
  }

  void add_problems(Chart& chart, const Named& one) const {
    std::vector<std::int64_t> steps;
    for (const StepRecord& step : one.run->steps) {
      if (!std::isfinite(step.loss)) steps.push_back(step.step);
    }
    if (steps.empty()) return;
    const std::string which =
        steps.size() == 1 ? "" : fmt::format("{}, the first being ", counted(steps.size(), "step"));
    chart.notes.push_back(fmt::format("{}The loss is not finite at {}step {}.",
                                      runs_.size() == 1 ? "" : one.facts.name + ": ", which, steps[0]));
  }

  void add_resumes(Chart& chart) const {
    for (const Named& one : runs_) {
      for (const EventRecord& event : one.run->events) {
        if (event.kind == "resume" && event.step()) chart.marks.push_back(static_cast<double>(*event.step()));
      }
    }
    if (!chart.marks.empty()) chart.notes.emplace_back("Dotted upright lines: a run was resumed there.");
  }

  const std::vector<Named>& runs_;
  double low_ = 0, high_ = 1;
};

/// Of all runs, each name once, in the order in which they come.
std::vector<NamedLoss> terms_of(const std::vector<Named>& runs) {
  std::vector<NamedLoss> terms;
  for (const Named& one : runs) {
    for (const StepRecord& step : one.run->steps) {
      for (const NamedLoss& term : step.losses) {
        if (std::ranges::find(terms, term.name, &NamedLoss::name) == terms.end()) terms.push_back(term);
      }
    }
  }
  return terms;
}

/// The loss over the rate, where the run was a learning-rate range test.
std::string range_test_chart(const Named& one) {
  const auto range = lr_range_of(one.run->steps);
  if (!range) return "";
  Chart chart{.title = "Learning-rate range test of " + one.facts.name};
  chart.unit = "smoothed loss over log10 of the learning rate";
  chart.x_low = std::log10(range->points.front().lr);
  chart.x_high = std::log10(range->points.back().lr);
  Curve curve;
  for (const LrRange::Point& point : range->points) curve.push_back({std::log10(point.lr), point.loss});
  chart.series.push_back({.name = one.facts.name, .color = one.color, .points = std::move(curve)});
  chart.notes.push_back(fmt::format("The loss falls fastest at {:.2g}, a peak to start from; it is lowest at {:.2g}.",
                                    range->steepest, range->lowest));
  return to_html(std::move(chart));
}

std::string charts(const std::vector<Named>& runs) {
  const bool any = std::ranges::any_of(runs, [](const Named& one) { return !one.run->steps.empty(); });
  if (!any) return "<p>No step has been written yet, so there is nothing to draw.</p>\n";
  const Charts charts(runs);
  std::string out = "<div class=\"charts\">\n" + charts.loss() + charts.late_loss() + charts.loss_beside_first() +
                    charts.loss_by_time();
  using enum Charts::Noise;
  for (const NamedLoss& term : terms_of(runs)) {
    const std::string title = "Loss term: " + term.name;
    const std::string unit = term.weight == 0 ? "not in the total" : fmt::format("weight {} in the total", term.weight);
    out += charts.of(title.c_str(), unit.c_str(), Quantity::kPlain, kSmoothed, [&](const StepRecord& step) {
      const auto at = std::ranges::find(step.losses, term.name, &NamedLoss::name);
      return at == step.losses.end() ? NAN : at->mean;
    });
  }
  out += charts.of("Learning rate", "", Quantity::kPlain, kNone, [](const StepRecord& step) { return step.lr; });
  out += charts.of("Gradient norm", "before clipping", Quantity::kPlain, kSmoothed,
                   [](const StepRecord& step) { return step.grad_norm; });
  out += charts.of("Gradient noise scale", "tokens; beyond it a larger batch brings little", Quantity::kCount, kNone,
                   [](const StepRecord& step) { return step.noise_scale.value_or(NAN); });
  out += charts.of("Throughput", "tokens per second", Quantity::kCount, kSmoothed,
                   [](const StepRecord& step) { return step.tokens_per_s; });
  out += charts.of("Model FLOPs utilisation", "", Quantity::kFraction, kSmoothed,
                   [](const StepRecord& step) { return step.mfu.value_or(NAN); });
  out += charts.of("Memory", "largest rank", Quantity::kBytes, kNone,
                   [](const StepRecord& step) { return static_cast<double>(step.memory); });
  for (const Named& one : runs) out += range_test_chart(one);
  for (const Named& one : runs) out += charts.breakdown(one);
  return out + "</div>\n";
}

/// How soon each run comes to a loss, beside the first one.
std::string time_to_loss_table(const std::vector<Named>& runs) {
  std::vector<std::span<const StepRecord>> steps;
  for (const Named& one : runs) steps.emplace_back(one.run->steps);
  const std::vector<TimeToLoss> times = times_to_loss(steps);
  if (times.empty()) return "";
  std::string head = "<th>Run</th>", body;
  for (const TimeToLoss& row : times) head += fmt::format("<th>loss {:.4f}</th>", row.loss);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    body += fmt::format("<tr><th><i class=\"key box k{}\"></i>{}</th>", runs[i].color, escaped(runs[i].facts.name));
    for (const TimeToLoss& row : times) {
      const double mine = row.seconds[i];
      body += fmt::format("<td>{}{}</td>", short_seconds(mine),
                          i > 0 && mine > 0 ? fmt::format(" ({:.2f}x as soon)", row.seconds[0] / mine) : "");
    }
    body += "</tr>\n";
  }
  return fmt::format(
      "<section class=\"queues\"><h2>Time to a loss</h2><div class=\"scroll\"><table><thead><tr>{}</tr></thead><tbody>"
      "{}</tbody></table></div>\n<p>Seconds of steps until the mean loss over a twentieth of the shortest run's tokens "
      "is there: 50, 75, 90 and 100 % of the way to the loss that all reach. In brackets: the time of {} over it.</p>"
      "</section>\n",
      head, body, escaped(runs[0].facts.name));
}

/// Little's law of every queue of rank 0, and which of them training waited for most.
std::string queue_tables(const std::vector<Named>& runs) {
  std::string out;
  for (const Named& one : runs) {
    const std::vector<NamedQueue> queues = queues_of(one.run->steps);
    if (queues.empty()) continue;
    std::string rows;
    for (const NamedQueue& queue : queues) {
      const QueueReading& reading = queue.reading;
      rows += fmt::format("<tr><th>{}</th><td>{:.2f}</td><td>{:.3g} /s</td><td>{}</td><td>{:.1f} %</td></tr>\n",
                          escaped(queue.name), reading.length(), reading.rate(), short_seconds(reading.wait()),
                          100 * reading.blocked_share());
    }
    const auto bounding = bounding_queue(queues);
    out += fmt::format(
        "<section class=\"queues\"><h2>Queues{}</h2><div class=\"scroll\"><table><thead><tr><th>Queue</th><th>L, mean "
        "length</th><th>&lambda;, rate</th><th>W, time in it</th><th>Training stood still</th></tr></thead><tbody>{}"
        "</tbody></table></div>\n<p>{}</p></section>\n",
        runs.size() > 1 ? ": " + escaped(one.facts.name) : "", rows,
        bounding ? fmt::format("<b>{}</b> bounds this run: {:.1f} % of its time went by waiting there.",
                               escaped(bounding->name), 100 * bounding->reading.blocked_share())
                 : "No queue bounds this run: waiting at each took less than 1 % of its time.");
  }
  return out;
}

/// Tokens of each expert and of each rank that has some.
std::string balance_tables(const std::vector<Named>& runs) {
  std::string out;
  for (const Named& one : runs) {
    const std::string table = balance_table(expert_balance(one.run->steps));
    if (table.empty()) continue;
    out += fmt::format("<section class=\"queues\"><h2>Balance of experts{}</h2>{}</section>\n",
                       runs.size() > 1 ? ": " + escaped(one.facts.name) : "", table);
  }
  return out;
}

/// What compression saved, and what it left out.
std::string compression_tables(const std::vector<Named>& runs) {
  std::string out;
  for (const Named& one : runs) {
    const auto figures = compression_of(one.run->dir);
    if (!figures) continue;
    out += fmt::format("<section class=\"queues\"><h2>Compression{}</h2>{}</section>\n",
                       runs.size() > 1 ? ": " + escaped(one.facts.name) : "", compression_table(*figures));
  }
  return out;
}

std::string recipes(const std::vector<Named>& runs) {
  std::string out;
  for (const Named& one : runs) {
    if (one.run->recipe.empty()) continue;
    out += fmt::format("<details><summary>Recipe{}</summary><pre>{}</pre></details>\n",
                       runs.size() > 1 ? " of " + escaped(one.facts.name) : "", escaped(one.run->recipe));
  }
  return out;
}

}  // namespace

std::string report_page(std::span<const RunFiles> files, std::span<const Figure> figures) {
  const std::vector<Named> runs = named(files);
  std::vector<std::string> names;
  for (const Named& one : runs) names.push_back(one.facts.name);
  const std::string title = runs.size() == 1 ? names[0] : fmt::format("{} runs", runs.size());
  std::string body = fmt::format("<h1>{}</h1>\n", escaped(title));
  body += runs.size() == 1 ? tiles(runs[0]) : table(runs);
  body += notes(runs) + charts(runs);
  for (const Figure& figure : figures) {
    body += fmt::format("<figure class=\"chart figure\"><figcaption><b>{}</b></figcaption>\n{}</figure>\n",
                        escaped(figure.title), figure.svg);
  }
  body +=
      time_to_loss_table(runs) + balance_tables(runs) + compression_tables(runs) + queue_tables(runs) + recipes(runs);
  body +=
      "<footer>Steps run along the horizontal axes, but where seconds are said. Written by trireme report.</footer>\n";
  return page(runs.size() == 1 ? title : listed(names), body);
}

}  // namespace trireme::observe

#include "trireme/cli/plan/print.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/html.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/plan/plot.h"
#include "trireme/observe/report/page.h"
#include "trireme/plan/explain.h"
#include "trireme/plan/goodput.h"

namespace trireme::cli {
namespace {

using plan::Estimate;

struct BarPart {
  const char* name;
  double value;
};

/// Layouts are long: they break into lines, so that tables have the page's width. On a phone a row is a paragraph, its
/// numbers with their names; the chart, whose letters would be too small there, is moved within its frame.
constexpr const char* kStyle =
    ".plan .words{text-align:left}.plan tbody th,.plan .words{white-space:normal;overflow-wrap:anywhere}"
    "@media (max-width:38rem){.front{overflow-x:auto}.front svg{min-width:38rem}.plan thead{display:none}"
    ".plan tr{display:flex;flex-wrap:wrap;gap:.1rem .9rem;padding:.5rem .6rem;border-bottom:1px solid var(--rule)}"
    ".plan tbody th,.plan td{padding:0;border:0;text-align:left;max-width:none}.plan tbody th,.plan .words{flex:1 0 "
    "100%}"
    ".plan tbody th:empty,.plan td:empty{display:none}"
    ".plan td[data-is]::before{content:attr(data-is) \" \";color:var(--soft)}}";

/// A bar of parts with its legend, each part with value and share.
template <typename Text>
std::string bar(const std::string& title, const std::vector<BarPart>& parts, double whole, const Text& text) {
  std::string segments, legend;
  double at = 0;
  int color = 0;
  for (const BarPart& part : parts) {
    const double share = 100 * part.value / whole;
    if (part.value > 0) {
      segments += fmt::format(
          R"h(<rect x="{:.3f}%" y="0" width="{:.3f}%" height="26" fill="var(--c{})"><title>{}</title></rect>)h", at,
          share, color, escaped(fmt::format("{}: {} ({:.1f} %)", part.name, text(part.value), share)));
      legend += fmt::format(
          R"h(<li><span class="key box" style="color:var(--c{})"></span>{} {} <small>({:.1f} %)</small></li>)h", color,
          escaped(part.name), escaped(text(part.value)), share);
    }
    at += share;
    color = (color + 1) % observe::kColors;
  }
  return fmt::format(
      R"h(<figure class="chart wide"><figcaption>{}</figcaption><svg width="100%" height="26" style="margin-top:.5rem;border-radius:3px;background:var(--grid)">{}</svg><ul class="legend">{}</ul></figure>)h",
      escaped(title), segments, legend);
}

std::string facts(const PlanTask& task, const plan::Sized& sized, const Estimate& best) {
  const plan::Goodput goodput = plan::estimate_goodput(task.hardware, task.job, sized.gpus);
  std::string out = R"h(<dl class="facts">)h";
  const auto add = [&out](const char* name, const std::string& value, const std::string& note) {
    out += fmt::format("<div><dt>{}</dt><dd>{}<small>{}</small></dd></div>", name, escaped(value), escaped(note));
  };
  const double rate = task.job.tokens() / best.step_seconds();
  add("step", short_seconds(best.step_seconds()), fmt::format("{} tokens", short_count(task.job.tokens())));
  add("model TFLOP/s a device", fmt::format("{:.1f}", best.tflops_per_gpu()),
      fmt::format("MFU {:.1f} %", 100 * best.mfu()));
  add("tokens a day", short_count(rate * 86400), fmt::format("{}/s", short_count(rate)));
  add("memory", fmt::format("{:.1f} GiB", best.memory.peak() / 1073741824.0),
      fmt::format("of {:.1f}, stage {}", best.memory.device / 1073741824.0, best.memory.fullest.stage));
  add("parameters", short_count(static_cast<double>(spec::count_parameters(task.job.shape).total())),
      counted(static_cast<std::size_t>(plan::layers_of(task.job.shape)), "layer"));
  add("goodput", fmt::format("{:.1f} %", 100 * goodput.share),
      fmt::format("checkpoint every {}", short_seconds(goodput.interval_seconds)));
  return out + "</dl>";
}

/// Every step of the front, and what a little more memory would give.
std::string front(const plan::SearchResult& found) {
  Plot plot{.x_title = "GiB on the fullest rank", .y_title = "seconds a step", .y_log = true};
  PlotLine line{.name = "", .color = 0};
  constexpr double kGib = 1073741824.0;
  for (const Estimate& one : found.pareto) line.points.emplace_back(one.memory.peak() / kGib, one.step_seconds());
  std::ranges::sort(line.points);
  plot.lines.push_back(std::move(line));
  // Names only where they tell something new: a third slower than the last that was named.
  double named = 0;
  for (std::size_t index = 0; index < found.pareto.size(); ++index) {
    const Estimate& one = found.pareto[index];
    const spec::ParallelConfig& config = one.config;
    const bool tells = named == 0 || one.step_seconds() > 1.33 * named;
    if (tells) named = one.step_seconds();
    plot.points.push_back(
        {one.memory.peak() / kGib, one.step_seconds(),
         tells ? fmt::format("tp {} pp {} dp {}", config.layout.tp, config.layout.pp, config.dp()) : "",
         fmt::format("{}: {:.4g} s, {:.1f} GiB", to_text(config), one.step_seconds(), one.memory.peak() / kGib), 0});
  }
  for (const Estimate& one : found.best)
    plot.points.push_back({one.memory.peak() / kGib, one.step_seconds(), "",
                           fmt::format("{}: {:.4g} s", to_text(one.config), one.step_seconds()), 1});
  return fmt::format(
      R"h(<figure class="chart wide"><figcaption>Time over memory <small>blue: each is the fastest with its memory or less; orange: the best by replaying their schedules</small></figcaption><div class="front">{}</div></figure>)h",
      to_svg(plot));
}

std::string best_table(const plan::SearchResult& found) {
  std::string rows;
  for (const Estimate& one : found.best)
    rows += fmt::format(
        R"h(<tr><th>{}</th><td data-is="step s">{:.4g}</td><td data-is="TFLOP/s">{:.1f}</td><td data-is="MFU %">{:.1f}</td><td data-is="GiB">{:.1f}</td><td class="words">{}</td></tr>)h",
        escaped(to_text(one.config)), one.step_seconds(), one.tflops_per_gpu(), 100 * one.mfu(),
        one.memory.peak() / 1073741824.0,
        &one == &found.best.front() ? "" : escaped(plan::why_slower(found.best.front(), one)));
  return fmt::format(
      R"h(<h2>The best of {} layouts, {} of which fit</h2><div class="scroll"><table class="plan"><thead><tr><th>layout</th><th>step s</th><th>TFLOP/s</th><th>MFU %</th><th>GiB</th><th></th></tr></thead><tbody>{}</tbody></table></div>)h",
      found.tried, found.fitting, rows);
}

std::string decisions(const plan::SearchResult& found) {
  std::string rows;
  for (const plan::DegreeChoice& decision : found.decisions) {
    bool first = true;
    for (const plan::Alternative& one : decision.alternatives) {
      const bool best = one.value == decision.best;
      const std::string why = !one.fits ? plan::why_not(one.best.memory)
                              : one.best.config == found.best.front().config
                                  ? "the best"
                                  : plan::why_slower(found.best.front(), one.best);
      rows += fmt::format(
          R"h(<tr><th>{}</th><td>{}{}</td><td data-is="fit">{}/{}</td><td data-is="step s">{}</td><td class="words">{}</td><td class="words">{}</td></tr>)h",
          first ? escaped(decision.name) : "", best ? "&#9654; " : "", escaped(one.value), one.fitting, one.layouts,
          one.fits ? fmt::format("{:.4g}", one.best.step_seconds()) : "&ndash;", escaped(why),
          best ? "" : escaped(to_text(one.best.config)));
      first = false;
    }
  }
  return fmt::format(
      R"h(<h2>Each decision made otherwise, all others free</h2><div class="scroll"><table class="plan"><thead><tr><th>decision</th><th>value</th><th>fit</th><th>step s</th><th class="words">why</th><th class="words">then best with</th></tr></thead><tbody>{}</tbody></table></div>)h",
      rows);
}

}  // namespace

std::string plan_page(const PlanTask& task, const plan::Sized& sized) {
  const Estimate& best = sized.found.best.front();
  const plan::StepTime& time = best.time;
  const plan::MemoryParts& parts = best.memory.parts;
  const std::string title = fmt::format("{} on {} x {} ({})", to_text(best.config), sized.gpus,
                                        task.hardware.device.name, task.hardware.cluster.name);
  std::string body = fmt::format("<style>{}</style><h1>{}</h1>{}", kStyle, escaped(title), facts(task, sized, best));
  body += R"h(<div class="charts">)h";
  body += bar("A step's time",
              {{"GEMMs", time.work.matmul},
               {"attention", time.work.attention},
               {"norms, activations, loss", time.work.streaming},
               {"tensor, context, expert parallelism", time.work.communication},
               {"stages' messages", time.pipeline},
               {"pipeline bubble", time.bubble},
               {"replicas", time.replicas},
               {"host and optimizer", time.offload + time.optimizer}},
              time.total(), [](double seconds) { return short_seconds(seconds); });
  body += bar("Memory of the fullest rank, of what the device has",
              {{"weights", parts.weights},
               {"gradients", parts.gradients},
               {"optimizer", parts.optimizer},
               {"activations", parts.activations},
               {"working memory", parts.working},
               {"buffers and software", parts.buffers}},
              std::max(best.memory.device, best.memory.peak()), [](double bytes) { return short_bytes(bytes); });
  body += front(sized.found) + "</div>";
  body += best_table(sized.found) + decisions(sized.found);
  return observe::page(title, body);
}

}  // namespace trireme::cli

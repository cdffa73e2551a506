#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <set>

#include "trireme/base/html.h"
#include "trireme/schedule/draw_parts.h"

namespace trireme::schedule {

namespace {

constexpr double kMargin = 16, kLabels = 64, kIdleColumn = 84;
constexpr double kLane = 30, kGap = 6, kHead = 62, kFoot = 84;
constexpr double kLeastBox = 24, kLeastBoxWithVersion = 30;  // wide enough for their numbers
constexpr double kMostWidth = 16000;                         // beyond it viewers give up
constexpr double kFont = 12, kSmall = 8;

struct Color {
  int red, green, blue;
};

/// Chosen so that neighbours differ in lightness too, for eyes that see few colours.
Color svg_color_of(Paint paint) {
  switch (paint) {
    case Paint::kForward:
      return {78, 134, 214};
    case Paint::kBackward:
      return {92, 178, 112};
    case Paint::kInput:
      return {70, 176, 180};
    case Paint::kWeight:
      return {238, 170, 72};
    case Paint::kRecompute:
      return {158, 128, 200};
    case Paint::kUpdate:
      return {60, 60, 60};
    default:
      return {205, 110, 140};
  }
}

/// Later chunks of a rank are lighter.
std::string shade(Paint paint, int turn) {
  const double white = std::min(0.62, 0.34 * turn);
  const auto mixed = [&](int part) { return static_cast<int>(std::lround(part + (255 - part) * white)); };
  const Color color = svg_color_of(paint);
  return fmt::format("#{:02x}{:02x}{:02x}", mixed(color.red), mixed(color.green), mixed(color.blue));
}

class Svg {
 public:
  explicit Svg(const Drawing& drawing, std::optional<double> scale = {})
      : drawing_(drawing), lanes_(boxes_of(drawing)) {
    double shortest = drawing.timing.makespan;
    for (const auto& lane : lanes_) {
      for (const DrawnBox& box : lane) {
        if (box.end > box.start) shortest = std::min(shortest, box.end - box.start);
      }
    }
    const double makespan = std::max(drawing.timing.makespan, 1e-9);
    const double least = drawing.schedule.weights == WeightChoice::kFlush ? kLeastBox : kLeastBoxWithVersion;
    scale_ = scale.value_or(std::min(least / std::max(shortest, 1e-9), kMostWidth / makespan));
    width_ = kMargin + kLabels + makespan * scale_ + kIdleColumn + kMargin;
    width_ = std::max(width_, 560.0);
    height_ = kHead + static_cast<double>(lanes_.size()) * (kLane + kGap) + kFoot;
  }

  double width() const { return width_; }
  double height() const { return height_; }
  std::string draw() {
    head();
    for (std::size_t rank = 0; rank < lanes_.size(); ++rank) lane(rank);
    axis();
    legend();
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  template <typename... Values>
  void add(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Values>(values)...);
  }
  double x(double time) const { return kMargin + kLabels + time * scale_; }
  static double y(std::size_t rank) { return kHead + static_cast<double>(rank) * (kLane + kGap); }

  void head() {
    add(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}" )",
        width_, height_);
    add("font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"{}\">\n", kFont);
    add("<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n");
    add(R"x(<defs><pattern id="idle" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">)x");
    add(R"(<rect width="6" height="6" fill="#f4f4f4"/><line x1="0" y1="0" x2="0" y2="6" stroke="#d4d4d4"/>)");
    add("</pattern></defs>\n");
    add("<text x=\"{}\" y=\"24\" font-size=\"15\" font-weight=\"bold\">{}</text>\n", kMargin,
        escaped(title_of(drawing_)));
    std::string under = summary_of(drawing_);
    if (!drawing_.caption.empty()) under += "; " + drawing_.caption;
    add("<text x=\"{}\" y=\"43\" fill=\"#444\">{}</text>\n", kMargin, escaped(under));
  }

  void lane(std::size_t rank) {
    const double top = y(rank), makespan = drawing_.timing.makespan;
    add("<text x=\"{}\" y=\"{:.1f}\">rank {}</text>\n", kMargin, top + kLane / 2 + 4, rank);
    add("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"url(#idle)\"/>\n", x(0), top,
        makespan * scale_, kLane);
    for (const DrawnBox& box : lanes_[rank]) {
      if (box.end > box.start) draw(box, top);
    }
    for (const DrawnBox& box : lanes_[rank]) {
      if (box.paint == Paint::kUpdate && box.end <= box.start) tick(box, top);
    }
    const double idle = makespan > 0 ? 100 * drawing_.timing.idle(static_cast<int>(rank)) / makespan : 0;
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#444\">idle {:.1f} %</text>\n", x(makespan) + 10, top + kLane / 2 + 4,
        idle);
  }

  void draw(const DrawnBox& box, double top) {
    used_.insert(box.paint);
    if (box.is_upper_half) has_pairs_ = true;
    const bool half = box.is_upper_half || box.is_lower_half;
    const double height = half ? kLane / 2 : kLane, upper = box.is_lower_half ? top + kLane / 2 : top;
    const double left = x(box.start), width = (box.end - box.start) * scale_;
    add("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\" stroke=\"white\" "
        "stroke-width=\"0.8\">",
        left, upper, width, height, shade(box.paint, box.turn));
    add("<title>{}{}{}{}, {:.6g} to {:.6g}</title></rect>\n", name_of(box.paint),
        box.micro < 0 ? "" : fmt::format(" of micro {}", micros_of(box)),
        box.chunk < 0 ? "" : fmt::format(", chunk {}", box.chunk),
        box.version ? fmt::format(", weights of version {}", *box.version) : "", box.start, box.end);
    if (box.micro < 0) return;
    const std::string label = micros_of(box);
    const double needed = 7.2 * static_cast<double>(label.size());
    if (needed > width) return;
    const bool with_version = box.version && width >= needed + 12;
    const double middle = left + width / 2 - (with_version ? 4 : 0);
    const double base = upper + height / 2 + (half ? 3.6 : 4.3);
    const char* ink = box.turn == 0 && box.paint != Paint::kWeight ? "white" : "#1c1c1c";
    add("<text x=\"{:.2f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"{}\"{}>{}</text>\n", middle, base, ink,
        half ? " font-size=\"10\"" : "", label);
    if (with_version)
      add("<text x=\"{:.2f}\" y=\"{:.1f}\" fill=\"{}\" font-size=\"{}\">v{}</text>\n", middle + needed / 2 + 1.5,
          base - 5, ink, kSmall, *box.version);
  }

  /// An update that takes no time.
  void tick(const DrawnBox& box, double top) {
    used_.insert(Paint::kUpdate);
    add("<line x1=\"{0:.2f}\" y1=\"{1:.1f}\" x2=\"{0:.2f}\" y2=\"{2:.1f}\" stroke=\"#222\" stroke-width=\"2\"/>\n",
        x(box.start), top - 2, top + kLane + 2);
  }

  /// Round numbers, some eighty pixels apart.
  void axis() {
    const double wanted = 80 / scale_, power = std::pow(10, std::floor(std::log10(wanted)));
    double step = 10 * power;
    for (const double factor : {5.0, 2.0, 1.0}) {
      if (factor * power >= wanted) step = factor * power;
    }
    const double top = y(lanes_.size()) + 2;
    add("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#888\"/>\n", x(0), top,
        x(drawing_.timing.makespan), top);
    for (double time = 0; time <= drawing_.timing.makespan * (1 + 1e-9); time += step)
      add("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#888\"/><text x=\"{0:.1f}\" "
          "y=\"{3:.1f}\" text-anchor=\"middle\" fill=\"#666\" font-size=\"10\">{4:.6g}</text>\n",
          x(time), top, top + 4, top + 15, time);
  }

  void legend() {
    const double top = height_ - 46;
    double left = kMargin;
    const auto entry = [&](const std::string& fill, const std::string& text) {
      add("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"14\" fill=\"{}\" stroke=\"#bbb\" "
          "stroke-width=\"0.5\"/><text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#333\" font-size=\"11\">{}</text>\n",
          left, top, fill, left + 19, top + 11, text);
      left += 19 + 6.6 * static_cast<double>(text.size()) + 14;
    };
    for (const Paint paint : used_) entry(shade(paint, 0), std::string(name_of(paint)));
    entry("url(#idle)", "idle");
    std::string note;
    const bool lighter = std::ranges::any_of(lanes_, [](const auto& lane) {
      return std::ranges::any_of(lane, [](const DrawnBox& box) { return box.turn > 0 && box.chunk >= 0; });
    });
    if (lighter) note = "lighter: a later chunk of the rank";
    if (has_pairs_) note += note.empty() ? "two halves: overlapped" : "; two halves: overlapped";
    if (drawing_.schedule.weights != WeightChoice::kFlush)
      note += note.empty() ? "v: version of the weights" : "; v: version";
    if (!note.empty())
      add("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#666\" font-size=\"11\">{}</text>\n", kMargin, top + 31, note);
  }

  const Drawing& drawing_;
  std::vector<std::vector<DrawnBox>> lanes_;
  double scale_ = 1, width_ = 0, height_ = 0;
  std::set<Paint> used_;
  bool has_pairs_ = false;
  std::string out_;
};

}  // namespace

std::string to_svg(const Drawing& drawing) { return Svg(drawing).draw(); }

Picture draw_scaled(const Drawing& drawing, double scale) {
  Svg svg(drawing, scale);
  return {.svg = svg.draw(), .width = svg.width(), .height = svg.height()};
}

}  // namespace trireme::schedule

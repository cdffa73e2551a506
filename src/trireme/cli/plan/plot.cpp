#include "trireme/cli/plan/plot.h"

#include "trireme/base/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trireme::cli {
namespace {

constexpr double kWidth = 760, kHeight = 420, kLeftMargin = 74, kRightMargin = 150, kTop = 14, kBottom = 52;

/// A number as a label: 0.5, 20, 1e15 as it reads best.
std::string label_of(double value) {
  if (value != 0 && (std::abs(value) >= 1e5 || std::abs(value) < 1e-3)) return fmt::format("{:.3g}", value);
  return fmt::format("{:.4g}", value);
}

struct Scale {
  bool log = false;
  double low = 0, high = 1;

  /// 0 to 1.
  double place(double value) const {
    if (!log) return (value - low) / (high - low);
    return std::log(std::max(value, low) / low) / std::log(high / low);
  }

  std::vector<double> ticks() const {
    std::vector<double> out;
    if (log) {
      const bool few = high / low < 300;
      for (double decade = std::pow(10, std::floor(std::log10(low))); decade <= high; decade *= 10) {
        for (const double step : few ? std::vector<double>{1, 2, 5} : std::vector<double>{1}) {
          if (decade * step >= low * 0.999 && decade * step <= high * 1.001) out.push_back(decade * step);
        }
      }
      return out;
    }
    const double rough = (high - low) / 6, power = std::pow(10, std::floor(std::log10(rough)));
    const double step = power * (rough / power < 1.5 ? 1 : rough / power < 3.5 ? 2 : rough / power < 7.5 ? 5 : 10);
    for (double tick = std::ceil(low / step) * step; tick <= high * 1.0001; tick += step) out.push_back(tick);
    return out;
  }
};

Scale scale_of(std::vector<double> values, bool log) {
  Scale scale{.log = log};
  std::erase_if(values, [log](double value) { return !std::isfinite(value) || (log && value <= 0); });
  if (values.empty()) return log ? Scale{.log = true, .low = 1, .high = 10} : scale;
  scale.low = *std::ranges::min_element(values), scale.high = *std::ranges::max_element(values);
  if (log) {
    const double margin = std::max(1.15, std::pow(scale.high / scale.low, 0.04));
    scale.low /= margin, scale.high *= margin;
  } else {
    const double margin = scale.high > scale.low ? 0.06 * (scale.high - scale.low) : std::max(1.0, scale.high) * 0.1;
    scale.low = scale.low >= 0 ? std::max(0.0, scale.low - margin) : scale.low - margin;
    scale.high += margin;
  }
  return scale;
}

constexpr std::string_view kColours =
    "<style>svg{background:#fff;--ink:#1b1f24;--soft:#5b6470;--rule:#dfe3e8;--grid:#e9ecf0;--c0:#0072b2;--c1:#d55e00;"
    "--c2:#009e73;--c3:#b0528b;--c4:#b27a00;--c5:#2f94c9;--c6:#7a6a2f;--c7:#4a4f57;"
    "font-family:system-ui,sans-serif}</style>";

class Drawing {
 public:
  explicit Drawing(const Plot& plot) : plot_(plot) {
    std::vector<double> xs, ys;
    for (const PlotLine& line : plot.lines) {
      for (const auto& [x, y] : line.points) xs.push_back(x), ys.push_back(y);
    }
    for (const PlotPoint& point : plot.points) xs.push_back(point.x), ys.push_back(point.y);
    x_ = scale_of(std::move(xs), plot.x_log);
    y_ = scale_of(std::move(ys), plot.y_log);
  }

  std::string draw(bool alone) {
    out_ = fmt::format(
        R"h(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" font-size="12" fill="var(--ink)">)h",
        kWidth, kHeight);
    if (alone) out_ += kColours;
    axes();
    for (const PlotLine& line : plot_.lines) add(line);
    for (const PlotPoint& point : plot_.points) dot(point);
    names();
    return out_ + "</svg>";
  }

 private:
  double px(double x) const { return kLeftMargin + x_.place(x) * (kWidth - kLeftMargin - kRightMargin); }
  double py(double y) const { return kHeight - kBottom - y_.place(y) * (kHeight - kTop - kBottom); }

  void axes() {
    const double right = kWidth - kRightMargin, bottom = kHeight - kBottom;
    double last = -100;
    for (const double tick : x_.ticks()) {
      out_ += fmt::format(R"h(<line x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}" stroke="var(--grid)"/>)h", px(tick),
                          kTop, bottom);
      if (px(tick) - last < 44) continue;  // no room for its label
      last = px(tick);
      out_ += fmt::format(R"h(<text x="{:.1f}" y="{}" text-anchor="middle" fill="var(--soft)">{}</text>)h", px(tick),
                          bottom + 17, label_of(tick));
    }
    for (const double tick : y_.ticks()) {
      out_ += fmt::format(R"h(<line x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}" stroke="var(--grid)"/>)h", kLeftMargin,
                          right, py(tick));
      out_ += fmt::format(R"h(<text x="{}" y="{:.1f}" text-anchor="end" fill="var(--soft)">{}</text>)h",
                          kLeftMargin - 7, py(tick) + 4, label_of(tick));
    }
    out_ += fmt::format(R"h(<path d="M{0} {1}V{2}H{3}" fill="none" stroke="var(--rule)" stroke-width="1.5"/>)h",
                        kLeftMargin, kTop, bottom, right);
    out_ += fmt::format(R"h(<text x="{}" y="{}" text-anchor="middle">{}</text>)h", (kLeftMargin + right) / 2,
                        kHeight - 12, escaped(plot_.x_title));
    out_ += fmt::format(R"h(<text transform="translate(16 {}) rotate(-90)" text-anchor="middle">{}</text>)h",
                        (kTop + bottom) / 2, escaped(plot_.y_title));
  }

  void add(const PlotLine& line) {
    std::string path;
    for (const auto& [x, y] : line.points)
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", px(x), py(y));
    out_ += fmt::format(R"h(<path d="{}" fill="none" stroke="var(--c{})" stroke-width="2"{}/>)h", path, line.color,
                        line.dashed ? R"h( stroke-dasharray="5 4")h" : "");
    if (!line.points.empty())
      labels_.push_back({px(line.points.back().first) + 6, py(line.points.back().second) + 4, line.name, line.color});
  }

  void dot(const PlotPoint& point) {
    out_ += fmt::format(
        R"h(<circle cx="{:.1f}" cy="{:.1f}" r="4.5" fill="var(--c{})" stroke="#fff" stroke-width="1"><title>{}</title></circle>)h",
        px(point.x), py(point.y), point.color, escaped(point.tip.empty() ? point.name : point.tip));
    if (!point.name.empty()) labels_.push_back({px(point.x) + 8, py(point.y) + 4, point.name, point.color});
  }

  /// Labels that would overlap are moved down, each under the one before it.
  void names() {
    std::ranges::stable_sort(labels_, {}, &Label::y);
    for (std::size_t index = 0; index < labels_.size(); ++index) {
      Label& one = labels_[index];
      for (std::size_t before = 0; before < index; ++before) {
        const Label& other = labels_[before];
        const bool beside = one.x > other.x + 6.3 * static_cast<double>(other.text.size()) ||
                            other.x > one.x + 6.3 * static_cast<double>(one.text.size());
        if (!beside && one.y < other.y + 13) one.y = other.y + 13;
      }
      out_ += fmt::format(R"h(<text x="{:.1f}" y="{:.1f}" font-size="11" fill="var(--c{})">{}</text>)h", one.x, one.y,
                          one.color, escaped(one.text));
    }
  }

  struct Label {
    double x, y;
    std::string text;
    int color;
  };

  const Plot& plot_;
  Scale x_, y_;
  std::vector<Label> labels_;
  std::string out_;
};

}  // namespace

std::string to_svg(const Plot& plot, bool alone) { return Drawing(plot).draw(alone); }

}  // namespace trireme::cli

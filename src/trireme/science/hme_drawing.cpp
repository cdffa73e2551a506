#include "trireme/science/hme_drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/html.h"

namespace trireme::science {
namespace {

// Colours that are told apart by people who see few (Okabe and Ito), then the same darker.
constexpr std::array<const char*, 16> kExpertColors = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
                                                       "#8a7a2a", "#5b6470", "#003f63", "#7a3600", "#00543d", "#8a3f6b",
                                                       "#8a5f00", "#1f6f9c", "#4d4417", "#2b2f35"};
const char* color_of(std::size_t expert) { return kExpertColors[expert % kExpertColors.size()]; }

constexpr double kLeft = 64, kTop = 16, kPlotWidth = 480, kPlotHeight = 400, kLegend = 572, kHeight = 470;
constexpr double kLeastWidth = 820, kCharacter = 7;  // no character of the legend is wider in the mean

/// An axis in the data's own units.
struct Extent {
  double low = 0, high = 1;

  explicit Extent(const std::vector<double>& values) {
    const auto [least, most] = std::ranges::minmax_element(values);
    const double margin = *most > *least ? 0.05 * (*most - *least) : 1;
    low = *least - margin, high = *most + margin;
  }
  double place(double value) const { return (value - low) / (high - low); }
  std::vector<double> ticks() const {
    const double rough = (high - low) / 6, power = std::pow(10, std::floor(std::log10(rough)));
    const double step = power * (rough / power < 1.5 ? 1 : rough / power < 3.5 ? 2 : rough / power < 7.5 ? 5 : 10);
    std::vector<double> out;
    for (double tick = std::ceil(low / step) * step; tick <= high; tick += step) {
      out.push_back(std::abs(tick) < step / 1e6 ? 0 : tick);
    }
    return out;
  }
};

class RegionDrawing {
 public:
  RegionDrawing(const Hme& model, const Samples& samples, const std::vector<std::size_t>& inputs)
      : model_(model), samples_(samples), inputs_(inputs), x_(input_values(inputs[0])), y_(vertical_values()) {}

  std::string svg(bool alone) {
    if (inputs_.size() == 1) {
      curves();
    } else {
      plane();
    }
    axes();
    legend();
    return fmt::format(
        "<svg{} viewBox=\"0 0 {} {}\" width=\"{}\" height=\"{}\" font-family=\"system-ui,sans-serif\" "
        "font-size=\"12\">\n"
        "{}{}</svg>\n",
        alone ? " xmlns=\"http://www.w3.org/2000/svg\"" : "", width_, kHeight, width_, kHeight,
        alone ? "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n" : "", out_);
  }

 private:
  std::vector<double> input_values(std::size_t input) const {
    std::vector<double> values;
    for (std::size_t t = 0; t < samples_.count(); ++t) values.push_back(raw(input, samples_.inputs(t, input)));
    return values;
  }
  std::vector<double> vertical_values() const {
    if (inputs_.size() == 2) return input_values(inputs_[1]);
    std::vector<double> values;
    for (std::size_t t = 0; t < samples_.count(); ++t) values.push_back(target_value(samples_.targets.row(t)));
    return values;
  }
  double raw(std::size_t input, double standard) const {
    return model_.columns.means[input] + model_.columns.scales[input] * standard;
  }
  double standard(std::size_t input, double value) const {
    return (value - model_.columns.means[input]) / model_.columns.scales[input];
  }
  /// The first target, or the number of the class.
  double target_value(std::span<const double> target) const {
    if (model_.columns.family == Family::kGaussian) return target[0];
    return static_cast<double>(std::ranges::max_element(target) - target.begin());
  }
  double px(double x) const { return kLeft + kPlotWidth * x_.place(x); }
  double py(double y) const { return kTop + kPlotHeight * (1 - y_.place(y)); }
  void look_at(double x, double y) {
    std::vector<double> input(model_.inputs(), 0);
    input.back() = 1;
    input[inputs_[0]] = standard(inputs_[0], x);
    if (inputs_.size() == 2) input[inputs_[1]] = standard(inputs_[1], y);
    forward(model_, input, at_);
  }

  void plane() {
    constexpr int kCells = 80;
    const double wide = kPlotWidth / kCells, high = kPlotHeight / kCells;
    for (int row = 0; row < kCells; ++row) {
      const double y = y_.high - (row + 0.5) / kCells * (y_.high - y_.low);
      std::size_t expert = 0;
      int level = -1, begin = 0;
      const auto flush = [&](int end) {
        if (level < 0) return;
        out_ += fmt::format(
            "<rect shape-rendering=\"crispEdges\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" "
            "fill=\"{}\" "
            "fill-opacity=\"{:.2f}\"/>\n",
            kLeft + begin * wide, kTop + row * high, (end - begin) * wide, high, color_of(expert), 0.08 + 0.10 * level);
      };
      for (int column = 0; column < kCells; ++column) {
        look_at(x_.low + (column + 0.5) / kCells * (x_.high - x_.low), y);
        const auto most = static_cast<std::size_t>(std::ranges::max_element(at_.log_path) - at_.log_path.begin());
        const int sure = std::min(4, static_cast<int>(std::exp(at_.log_path[most]) * 5));
        if (most == expert && sure == level) continue;
        flush(column);
        expert = most, level = sure, begin = column;
      }
      flush(kCells);
    }
    samples_as_points();
  }

  void samples_as_points() {
    std::vector<double> values;
    for (std::size_t t = 0; t < samples_.count(); ++t) values.push_back(target_value(samples_.targets.row(t)));
    const Extent shades(values);
    const std::size_t every = std::max<std::size_t>(1, samples_.count() / 1500);  // more hide each other
    for (std::size_t t = 0; t < samples_.count(); t += every) {
      const double x = px(raw(inputs_[0], samples_.inputs(t, inputs_[0])));
      const double y = inputs_.size() == 2 ? py(raw(inputs_[1], samples_.inputs(t, inputs_[1]))) : py(values[t]);
      const int grey = inputs_.size() == 1 ? 120 : static_cast<int>(245 * (1 - shades.place(values[t])));
      out_ += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.6\" fill=\"rgb({},{},{})\" stroke=\"#1b1f24\" "
          "stroke-width=\"0.5\"/>\n",
          x, y, grey, grey, grey);
    }
  }

  void curves() {
    constexpr int kSteps = 240;
    constexpr double kBand = 44;  // below the axis of the plot: the gates
    samples_as_points();
    const std::size_t experts = model_.experts.size();
    const bool gaussian = model_.columns.family == Family::kGaussian;
    std::string mean;
    std::vector<std::string> lines(experts);
    for (int step = 0; step <= kSteps; ++step) {
      const double x = x_.low + (x_.high - x_.low) * step / kSteps;
      look_at(x, 0);
      double base = 0;
      for (std::size_t e = 0; e < experts; ++e) {
        const double share = std::exp(at_.log_path[e]);
        const double tall = share * kBand;
        out_ += fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"/>\n",
                            px(x) - kPlotWidth / kSteps / 2, kTop + kPlotHeight - kBand + base,
                            kPlotWidth / kSteps + 0.2, tall, color_of(e));
        base += tall;
        const double y = at_.means(e, 0);
        if (gaussian && share > 0.02 && y > y_.low && y < y_.high) {
          lines[e] += fmt::format("{}{:.1f},{:.1f}", lines[e].empty() ? "" : " ", px(x), py(y));
        }
      }
      const std::vector<double> middle = mean_of(at_);
      double value = gaussian ? middle[0] : 0;
      if (!gaussian) {
        for (std::size_t k = 0; k < middle.size(); ++k) value += static_cast<double>(k) * middle[k];
      }
      mean += fmt::format("{}{:.1f},{:.1f}", mean.empty() ? "" : " ", px(x), py(std::clamp(value, y_.low, y_.high)));
    }
    for (std::size_t e = 0; e < experts; ++e) {
      out_ += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2.5\"/>\n", lines[e],
                          color_of(e));
    }
    out_ += fmt::format(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#1b1f24\" stroke-width=\"1.4\" stroke-dasharray=\"5 3\"/>\n",
        mean);
  }

  void axes() {
    out_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#5b6470\"/>\n",
                        kLeft, kTop, kPlotWidth, kPlotHeight);
    for (const double tick : x_.ticks()) {
      out_ += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\" fill=\"#5b6470\">{:.4g}</text>\n",
                          px(tick), kTop + kPlotHeight + 16, tick);
    }
    const bool classes = inputs_.size() == 1 && model_.columns.family == Family::kMultinomial;
    if (classes) {
      for (std::size_t k = 0; k < model_.columns.classes.size(); ++k) {
        vertical_label(static_cast<double>(k), escaped(model_.columns.classes[k]));
      }
    } else {
      for (const double tick : y_.ticks()) vertical_label(tick, fmt::format("{:.4g}", tick));
    }
    const std::string& upward = inputs_.size() == 2 ? model_.columns.inputs[inputs_[1]] : model_.columns.targets[0];
    out_ += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", kLeft + kPlotWidth / 2,
                        kTop + kPlotHeight + 38, escaped(model_.columns.inputs[inputs_[0]]));
    out_ += fmt::format("<text transform=\"translate(14 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                        kTop + kPlotHeight / 2, escaped(upward));
  }
  void vertical_label(double value, const std::string& text) {
    out_ += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\" fill=\"#5b6470\">{}</text>\n", kLeft - 6,
                        py(value) + 4, text);
  }

  void legend() {
    const std::vector<double> shares = expert_shares(model_, samples_);
    double y = kTop + 14;
    const auto line = [&](const std::string& text, const char* color) {
      if (color != nullptr) {
        out_ += fmt::format("<rect x=\"{}\" y=\"{:.0f}\" width=\"12\" height=\"12\" fill=\"{}\"/>\n", kLegend, y - 10,
                            color);
      }
      const double x = kLegend + (color != nullptr ? 18 : 0);
      out_ += fmt::format("<text x=\"{}\" y=\"{:.0f}\">{}</text>\n", x, y, text);
      width_ = std::max(width_, x + kCharacter * static_cast<double>(text.size()));
      y += 18;
    };
    std::vector<std::size_t> order(shares.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    constexpr std::size_t kMostLines = 18;
    if (order.size() > kMostLines) {
      std::ranges::sort(order, std::ranges::greater{}, [&](std::size_t e) { return shares[e]; });
    }
    for (std::size_t i = 0; i < std::min(order.size(), kMostLines); ++i) {
      const std::size_t e = order[i];
      std::string text = fmt::format("expert {}: {:.1f} % of samples", expert_name(model_, e), 100 * shares[e]);
      if (model_.columns.family == Family::kGaussian) {
        text += fmt::format(", σ {:.3g}", std::sqrt(model_.experts[e].variances[0]));
      }
      line(text, color_of(e));
    }
    if (order.size() > kMostLines) line(fmt::format("and {} experts with fewer", order.size() - kMostLines), nullptr);
    y += 6;
    if (inputs_.size() == 1) {
      line("lines: experts; dashed: the mixture", nullptr);
      line("band below: the gates", nullptr);
    } else {
      line("colour: most probable expert", nullptr);
      const bool numbers = model_.columns.family == Family::kGaussian;
      line(numbers ? "circles: samples, darker: larger" : "circles: samples, darker: later class", nullptr);
      if (model_.columns.inputs.size() > 2) line("inputs not drawn are at their means", nullptr);
    }
  }

  const Hme& model_;
  const Samples& samples_;
  std::vector<std::size_t> inputs_;
  Extent x_, y_;
  Forward at_;
  std::string out_;
  double width_ = kLeastWidth;
};

}  // namespace

std::string expert_name(const Hme& model, std::size_t expert) {
  std::string name;
  std::size_t rest = expert;
  for (std::size_t level = model.branching.size(); level-- > 0;) {
    const auto branches = static_cast<std::size_t>(model.branching[level]);
    name = fmt::format("{}{}{}", rest % branches + 1, name.empty() ? "" : ".", name);
    rest /= branches;
  }
  return name.empty() ? "1" : name;
}

std::vector<double> expert_shares(const Hme& model, const Samples& samples) {
  std::vector<double> shares(model.experts.size());
  Forward at;
  for (std::size_t t = 0; t < samples.count(); ++t) {
    forward(model, samples.inputs.row(t), at);
    posteriors(model, samples.targets.row(t), at);
    for (std::size_t e = 0; e < shares.size(); ++e) {
      shares[e] += at.responsibility[model.gates.size() + e] / static_cast<double>(samples.count());
    }
  }
  return shares;
}

std::vector<std::size_t> inputs_by_gates(const Hme& model) {
  std::vector<double> squares(model.columns.inputs.size());
  for (const Matrix& gate : model.gates) {
    for (std::size_t j = 0; j < gate.rows; ++j) {
      for (std::size_t i = 0; i < squares.size(); ++i) squares[i] += gate(j, i) * gate(j, i);
    }
  }
  std::vector<std::size_t> order(squares.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](std::size_t i) { return squares[i]; });
  return order;
}

std::string draw_regions(const Hme& model, const Samples& samples, const std::vector<std::size_t>& inputs, bool alone) {
  if (inputs.empty() || inputs.size() > 2)
    throw ConfigError("regions are drawn over one or two inputs", "name one or two");
  return RegionDrawing(model, samples, inputs).svg(alone);
}

std::string regions_page(const Hme& model, const Samples& samples, const std::vector<std::size_t>& inputs,
                         const std::vector<double>& log_likelihoods) {
  std::string rows, iterations;
  const std::vector<double> shares = expert_shares(model, samples);
  const bool gaussian = model.columns.family == Family::kGaussian;
  for (std::size_t e = 0; e < model.experts.size(); ++e) {
    for (std::size_t k = 0; k < model.columns.outputs(); ++k) {
      // In the data's own units: w (x - mean) / scale + c.
      double constant = model.experts[e].weights(k, model.inputs() - 1);
      std::string cells;
      for (std::size_t i = 0; i < model.columns.inputs.size(); ++i) {
        const double slope = model.experts[e].weights(k, i) / model.columns.scales[i];
        constant -= slope * model.columns.means[i];
        cells += fmt::format("<td>{:.4g}</td>", slope);
      }
      rows += fmt::format("<tr><td>{}</td><td>{:.3f}</td><td>{}</td>{}<td>{:.4g}</td><td>{}</td></tr>\n",
                          expert_name(model, e), shares[e],
                          escaped(gaussian ? model.columns.targets[k] : model.columns.classes[k]), cells, constant,
                          gaussian ? fmt::format("{:.4g}", std::sqrt(model.experts[e].variances[k])) : "");
    }
  }
  std::string heads;
  for (const std::string& name : model.columns.inputs) heads += fmt::format("<th>{}</th>", escaped(name));
  for (std::size_t i = 0; i < log_likelihoods.size(); ++i) {
    iterations += fmt::format("<tr><td>{}</td><td>{:.6f}</td></tr>\n", i, log_likelihoods[i]);
  }
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Hierarchical mixture of "
      "experts</title>\n"
      "<style>body{{font:14px system-ui,sans-serif;margin:24px;color:#1b1f24}}table{{border-collapse:collapse}}"
      "td,th{{padding:2px 10px;text-align:right;border-bottom:1px solid "
      "#dfe3e8}}svg{{max-width:100%;height:auto}}</style>"
      "</head><body>\n<h1>Hierarchical mixture of experts</h1>\n<p>{} inputs, {} experts, {} parameters, {} "
      "samples.</p>\n"
      "{}<h2>Experts</h2>\n<table><tr><th>expert</th><th>share</th><th>output</th>{}<th>constant</th><th>{}</th></tr>\n"
      "{}</table>\n<h2>Mean log-likelihood</h2>\n<table><tr><th>iteration</th><th>nats a sample</th></tr>\n{}</table>\n"
      "</body></html>\n",
      model.columns.inputs.size(), model.experts.size(), model.parameters(), samples.count(),
      draw_regions(model, samples, inputs, false), heads, gaussian ? "σ" : "", rows, iterations);
}

}  // namespace trireme::science

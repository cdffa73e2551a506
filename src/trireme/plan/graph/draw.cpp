#include "trireme/plan/graph/draw.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "trireme/base/html.h"
#include "trireme/base/units.h"

namespace trireme::plan::graph {
namespace {

constexpr double kBoxWidth = 196, kBoxHeight = 34, kStepX = 226, kStepY = 62, kEdge = 24, kTop = 64, kFootRoom = 44;
constexpr const char* kBetween = "#1b1b1b";

const char* color_of(DimKind kind) {
  switch (kind) {
    case DimKind::kOutput:
      return "#4e86d6";
    case DimKind::kReduced:
      return "#9e80c8";
    case DimKind::kWindowed:
      return "#5cb270";
    case DimKind::kStatistic:
      return "#eeaa48";
    case DimKind::kWhole:
      return "#c8c8c8";
  }
  return "#c8c8c8";
}

/// Fill of a box by what the operator is.
const char* tint_of(OpKind kind) {
  switch (kind) {
    case OpKind::kEinsum:
    case OpKind::kConvolution:
    case OpKind::kLstmCell:
    case OpKind::kAttention:
      return "#e3ecf9";
    case OpKind::kSoftmaxLoss:
      return "#f9e3e3";
    case OpKind::kGather:
    case OpKind::kRouter:
      return "#f3ecda";
    default:
      return "#f4f4f4";
  }
}

/// Stages next to each other are told apart.
const char* tint_of_stage(int stage) {
  constexpr const char* kTints[] = {"#d5e5f7", "#fbe3c4", "#d8efd9", "#f4d6dc", "#e2daf2", "#e9e6c9"};
  return kTints[static_cast<std::size_t>(stage) % std::size(kTints)];
}

std::string fitted(std::string text, std::size_t columns) {
  if (text.size() > columns) text = text.substr(0, columns - 2) + "..";
  return text;
}

class GraphSvg {
 public:
  GraphSvg(const Graph& graph, const GraphDrawing& drawing) : graph_(graph), drawing_(drawing), uses_(uses_of(graph)) {
    place();
  }

  std::string draw() {
    add(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}" )",
        width_, height_);
    add("font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"11\">\n");
    add("<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n");
    add("<text x=\"{}\" y=\"26\" font-size=\"15\" font-weight=\"bold\">{}</text>\n", kEdge, escaped(graph_.name));
    add("<text x=\"{}\" y=\"44\" fill=\"#444\">{}</text>\n", kEdge, escaped(drawing_.caption));
    for (std::size_t i = 0; i < shown_.size(); ++i) edges_into(shown_[i]);
    for (std::size_t i = 0; i < shown_.size(); ++i) box(shown_[i]);
    legend();
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  template <typename... Values>
  void add(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Values>(values)...);
  }

  /// A row is a depth; within it an operator stays below its first input where that place is free.
  void place() {
    const std::size_t ops = graph_.ops.size();
    depth_.assign(ops, 0);
    lane_.assign(ops, 0);
    std::vector<std::set<int>> taken;
    int lanes_of_column = 1;
    for (std::size_t i = 0; i < ops; ++i) {
      if (graph_.ops[i].forward >= 0) continue;
      int depth = 0, wanted = 0;
      for (const int input : graph_.ops[i].inputs) {
        const int from = uses_.producer[static_cast<std::size_t>(input)];
        if (from < 0) continue;
        if (depth_[std::size_t(from)] + 1 > depth) wanted = lane_[std::size_t(from)];
        depth = std::max(depth, depth_[std::size_t(from)] + 1);
      }
      if (taken.size() <= static_cast<std::size_t>(depth)) taken.resize(std::size_t(depth) + 1);
      auto& row = taken[static_cast<std::size_t>(depth)];
      while (row.contains(wanted)) ++wanted;
      row.insert(wanted);
      depth_[i] = depth;
      lane_[i] = wanted;
      shown_.push_back(static_cast<int>(i));
    }
    const int rows = static_cast<int>(taken.size()), columns = std::max(1, (rows + drawing_.rows - 1) / drawing_.rows);
    columns_x_.assign(static_cast<std::size_t>(columns) + 1, kEdge);
    for (int column = 0; column < columns; ++column) {
      lanes_of_column = 1;
      for (int row = column * drawing_.rows; row < std::min(rows, (column + 1) * drawing_.rows); ++row)
        lanes_of_column = std::max(lanes_of_column, *taken[std::size_t(row)].rbegin() + 1);
      columns_x_[std::size_t(column) + 1] = columns_x_[std::size_t(column)] + lanes_of_column * kStepX + kEdge;
    }
    int stages = 0;
    for (const OpMark& mark : drawing_.marks) stages = std::max(stages, mark.stage + 1);
    width_ = std::max(columns_x_.back(), stages == 0 ? 520.0 : 520.0 + 72 * std::max(0, stages - 4));
    height_ = kTop + std::min(rows, drawing_.rows) * kStepY + kFootRoom;
  }

  int stage_of(int op) const {
    return drawing_.marks.empty() ? -1 : drawing_.marks[static_cast<std::size_t>(op)].stage;
  }
  double x(int op) const {
    const auto at = static_cast<std::size_t>(op);
    return columns_x_[static_cast<std::size_t>(depth_[at] / drawing_.rows)] + lane_[at] * kStepX;
  }
  double y(int op) const { return kTop + depth_[static_cast<std::size_t>(op)] % drawing_.rows * kStepY; }

  void edges_into(int op) {
    std::set<int> seen;
    for (const int input : graph_.op(op).inputs) {
      const int from = uses_.producer[static_cast<std::size_t>(input)];
      if (from < 0 || !seen.insert(from).second) continue;
      const double x1 = x(from) + kBoxWidth / 2, y1 = y(from) + kBoxHeight, x2 = x(op) + kBoxWidth / 2, y2 = y(op);
      const auto mark = drawing_.edges.find({from, op});
      const bool leaves = stage_of(from) != stage_of(op);
      between_stages_ = between_stages_ || leaves;
      const char* color = mark != drawing_.edges.end() ? "#c03a2b" : leaves ? kBetween : "#9a9a9a";
      const double bend = y2 > y1 ? std::max(12.0, (y2 - y1) / 2) : 40;
      if (depth_[std::size_t(op)] - depth_[std::size_t(from)] > 1 && y2 > y1) {
        // An edge that passes other boxes goes around them, in the gap on their right; three of them side by side.
        const double side = std::max(x(from), x(op)) + kBoxWidth, aside = side + 6 + 5 * (around_++ % 3);
        const double begin = y(from) + kBoxHeight / 2, end = y(op) + kBoxHeight / 2;
        add("<path d=\"M{:.1f} {:.1f} H{:.1f} Q{:.1f} {:.1f} {:.1f} {:.1f} V{:.1f} Q{:.1f} {:.1f} {:.1f} {:.1f} "
            "H{:.1f}\" "
            "fill=\"none\" stroke=\"{}\"/>\n",
            x(from) + kBoxWidth, begin, aside - 6, aside, begin, aside, begin + 6, end - 6, aside, end, aside - 6, end,
            x(op) + kBoxWidth, color);
      } else {
        add("<path d=\"M{:.1f} {:.1f} C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}\" fill=\"none\" stroke=\"{}\"/>\n", x1,
            y1, x1, y1 + bend, x2, y2 - bend, x2, y2, color);
      }
      if (mark != drawing_.edges.end())
        add("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#c03a2b\" font-size=\"9\">{}</text>\n", x2 + 6, y2 - 5,
            escaped(fitted(mark->second, 34)));
    }
  }

  void box(int index) {
    const Op& op = graph_.op(index);
    const double left = x(index), top = y(index);
    add("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" rx=\"4\" fill=\"{}\" stroke=\"#888\">", left, top,
        kBoxWidth, kBoxHeight, stage_of(index) >= 0 ? tint_of_stage(stage_of(index)) : tint_of(op.kind));
    add("<title>{}: {}</title></rect>\n", escaped(op.name), name_of(op.kind));
    add("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", left + 7, top + 14, escaped(fitted(op.name, 27)));
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#555\" font-size=\"9\">{}</text>\n", left + 7, top + 27,
        escaped(fitted(below(op), 36)));
    if (drawing_.marks.empty()) return;
    const OpMark& mark = drawing_.marks[static_cast<std::size_t>(index)];
    const double each = mark.splits.empty() ? 0 : kBoxWidth / static_cast<double>(mark.splits.size());
    for (std::size_t i = 0; i < mark.splits.size(); ++i) {
      used_.insert(mark.kinds[i]);
      add("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"13\" fill=\"{}\"/>", left + each * double(i),
          top + kBoxHeight, each, color_of(mark.kinds[i]));
      add("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"white\" font-size=\"9\" text-anchor=\"middle\">{}</text>\n",
          left + each * (double(i) + 0.5), top + kBoxHeight + 10,
          escaped(fitted(mark.splits[i], std::size_t(each / 6))));
    }
    if (!mark.inserted.empty())
      add("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#c03a2b\" font-size=\"9\" text-anchor=\"end\">{}</text>\n",
          left + kBoxWidth - 5, top + 14, escaped(fitted(mark.inserted, 14)));
  }

  /// "convolution [32 64 112 112], 9.4k parameters"
  std::string below(const Op& op) const {
    std::string text = op.function.empty() ? std::string(name_of(op.kind)) : op.function;
    text += " [";
    const Tensor& output = graph_.tensor(op.outputs[0]);
    for (std::size_t i = 0; i < output.dims.size(); ++i)
      text += fmt::format("{}{}", i ? " " : "", graph_.size(output.dims[i]));
    text += "]";
    Index parameters = 0;
    for (const int input : op.inputs) {
      if (graph_.tensor(input).role == Role::kParameter) parameters += graph_.elements(graph_.tensor(input));
    }
    if (parameters > 0) text += " " + short_count(static_cast<double>(parameters));
    return text;
  }

  void legend() {
    double left = kEdge;
    const double top = height_ - 24;
    const auto entry = [&](const char* color, std::string_view text) {
      add("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{:.1f}\" y=\"{:.1f}\" "
          "fill=\"#333\" font-size=\"10\">{}</text>\n",
          left, top, color, left + 16, top + 10, text);
      left += 30 + 6 * static_cast<double>(text.size());
    };
    for (const DimKind kind : used_) {
      entry(color_of(kind), kind == DimKind::kOutput     ? "split along an output dimension"
                            : kind == DimKind::kReduced  ? "along a sum"
                            : kind == DimKind::kWindowed ? "with halos"
                                                         : "with statistics");
    }
    int stages = 0;
    for (const OpMark& mark : drawing_.marks) stages = std::max(stages, mark.stage + 1);
    for (int stage = 0; stage < stages; ++stage) entry(tint_of_stage(stage), fmt::format("stage {}", stage));
    if (between_stages_) entry(kBetween, "sent to another stage");
    if (!drawing_.edges.empty()) entry("#c03a2b", "inserted");
  }

  const Graph& graph_;
  const GraphDrawing& drawing_;
  const Uses uses_;
  std::vector<int> depth_, lane_, shown_;
  std::vector<double> columns_x_;
  std::set<DimKind> used_;
  double width_ = 0, height_ = 0;
  int around_ = 0;  // edges that go around boxes
  bool between_stages_ = false;
  std::string out_;
};

}  // namespace

std::string to_svg(const Graph& graph, const GraphDrawing& drawing) { return GraphSvg(graph, drawing).draw(); }

}  // namespace trireme::plan::graph

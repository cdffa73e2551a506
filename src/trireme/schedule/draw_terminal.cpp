#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trireme/schedule/draw_parts.h"

namespace trireme::schedule {

namespace {

char letter_of(Paint paint) {
  switch (paint) {
    case Paint::kForward:
      return 'F';
    case Paint::kBackward:
      return 'B';
    case Paint::kInput:
      return 'I';
    case Paint::kWeight:
      return 'W';
    case Paint::kRecompute:
      return 'R';
    case Paint::kUpdate:
      return 'O';
    default:
      return 'V';
  }
}

/// The terminal's own colours: blue, green, cyan, yellow, magenta.
int terminal_color_of(Paint paint) {
  switch (paint) {
    case Paint::kForward:
      return 44;
    case Paint::kBackward:
      return 42;
    case Paint::kInput:
      return 46;
    case Paint::kWeight:
      return 43;
    case Paint::kRecompute:
      return 45;
    default:
      return 47;
  }
}

/// "F3", of the second chunk of its rank "F3b"; a pair as its forward with a plus.
std::string label_of(const DrawnBox& box) {
  std::string label(static_cast<std::size_t>(box.micros), letter_of(box.paint));
  if (box.micro >= 0) label += std::to_string(box.micro);
  if (box.turn > 0 && box.chunk >= 0) label += static_cast<char>('a' + std::min(box.turn, 25));
  if (box.is_upper_half) label += '+';
  return label;
}

struct Scale {
  double columns_per_time = 1;
  bool has_labels = true;
  double wanted_columns = 0;

  Scale(const std::vector<std::vector<DrawnBox>>& lanes, double makespan, std::size_t width) {
    double wanted = 0;  // so that every label fits its box, with a space
    for (const auto& lane : lanes) {
      for (const DrawnBox& box : lane) {
        if (box.end > box.start && !box.is_lower_half)
          wanted = std::max(wanted, static_cast<double>(label_of(box).size() + 1) / (box.end - box.start));
      }
    }
    const double most = static_cast<double>(width) / std::max(makespan, 1e-9);
    wanted_columns = wanted * makespan;
    has_labels = wanted <= most;
    columns_per_time = has_labels ? wanted : most;
  }
  std::size_t column(double time) const { return static_cast<std::size_t>(std::lround(time * columns_per_time)); }
};

}  // namespace

std::string to_terminal(const Drawing& drawing, std::size_t width, bool colors) {
  const auto lanes = boxes_of(drawing);
  const std::string widest = fmt::format("rank {}: ", lanes.empty() ? 0 : lanes.size() - 1);
  const std::size_t room = width > widest.size() + 20 ? width - widest.size() : 20;
  const Scale scale(lanes, drawing.timing.makespan, room);
  std::string out = fmt::format("{}: {}\n", title_of(drawing), summary_of(drawing));
  if (!drawing.caption.empty()) out += drawing.caption + '\n';
  if (!scale.has_labels)
    out += fmt::format("too narrow for the indices of micros: they need {:.0f} columns\n",
                       std::ceil(scale.wanted_columns) + static_cast<double>(widest.size()));
  for (std::size_t rank = 0; rank < lanes.size(); ++rank) {
    std::string line(scale.column(drawing.timing.makespan), '.');
    std::vector<int> paint(line.size(), 0);
    for (const DrawnBox& box : lanes[rank]) {
      const std::size_t begin = scale.column(box.start), end = std::min(scale.column(box.end), line.size());
      if (begin >= end || box.is_lower_half) continue;
      const std::string label = label_of(box);
      // Without room for numbers the letters alone show what runs when.
      for (std::size_t column = begin; column < end; ++column) {
        line[column] = scale.has_labels ? ' ' : label.front();
        paint[column] = terminal_color_of(box.paint);
      }
      if (scale.has_labels) line.replace(begin, std::min(label.size(), end - begin), label, 0, end - begin);
    }
    out += fmt::format("{:<{}}", fmt::format("rank {}:", rank), widest.size());
    int now = 0;
    for (std::size_t column = 0; column < line.size(); ++column) {
      if (colors && paint[column] != now) {
        now = paint[column];
        out += now == 0 ? "\033[0m" : fmt::format("\033[0;30;{}m", now);
      }
      out += line[column];
    }
    if (now != 0) out += "\033[0m";
    while (!colors && out.back() == ' ') out.pop_back();
    out += '\n';
  }
  return out;
}

}  // namespace trireme::schedule

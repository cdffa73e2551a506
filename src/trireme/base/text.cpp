#include "trireme/base/text.h"

#include <algorithm>
#include <cctype>

#include "trireme/base/error.h"

namespace trireme {
namespace {

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

std::string padding(std::size_t width, std::string_view text) {
  const std::size_t used = columns_of(text);
  return std::string(used < width ? width - used : 0, ' ');
}

void strip_line_end(std::string& out) {
  while (!out.empty() && out.back() == ' ') out.pop_back();
  out += '\n';
}

std::string markdown_cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Optimal string alignment: three rows of the usual table, the third for swapped neighbours.
  std::vector<std::size_t> two_up(b.size() + 1), up(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(two_up, up);
    std::swap(up, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({up[j] + 1, row[j - 1] + 1, up[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1])) {
        row[j] = std::min(row[j], two_up[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

std::optional<std::string> closest(std::string_view word, std::span<const std::string> candidates) {
  // A word may be a third wrong; beyond that a suggestion misleads more often than it helps. The bound on the length
  // keeps a hostile word of a megabyte from costing a table of its size.
  const std::size_t allowed = std::max<std::size_t>(1, std::min<std::size_t>(word.size(), 64) / 3);
  std::optional<std::string> best;
  std::size_t best_distance = allowed + 1;
  for (const std::string& candidate : candidates) {
    if (word.size() > candidate.size() + allowed || candidate.size() > word.size() + allowed) continue;
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance && distance < candidate.size()) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> candidates) {
  const auto candidate = closest(word, candidates);
  return candidate ? fmt::format("; did you mean \"{}\"?", *candidate) : std::string();
}

std::string listed(std::span<const std::string> words) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) out += i + 1 == words.size() ? " and " : ", ";
    out += words[i];
  }
  return out;
}

std::string counted(std::size_t count, std::string_view word) {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
}

std::size_t columns_of(std::string_view text) {
  // Bytes 10xxxxxx continue a UTF-8 code point.
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string_view trimmed(std::string_view text) {
  const auto space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end == std::string_view::npos ? end : end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::vector<std::string> wrapped(std::string_view text, std::size_t width) {
  std::vector<std::string> lines(1);
  for (const std::string& word : split(text, ' ')) {
    std::string& line = lines.back();
    if (!line.empty() && columns_of(line) + 1 + columns_of(word) > width) {
      lines.push_back(word);
    } else {
      if (!line.empty()) line += ' ';
      line += word;
    }
  }
  return lines;
}

void TextTable::add(std::vector<std::string> cells) {
  TRIREME_CHECK(cells.size() == columns_.size(), "a row of {} cells in a table of {} columns", cells.size(),
                columns_.size());
  rows_.push_back(std::move(cells));
}

std::vector<std::size_t> TextTable::widths() const {
  std::vector<std::size_t> out;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = columns_of(columns_[c].title);
    for (const auto& row : rows_) width = std::max(width, columns_of(row[c]));
    out.push_back(width);
  }
  return out;
}

std::string TextTable::text(std::string_view indent, std::size_t width) const {
  const std::vector<std::size_t> columns = widths();
  std::size_t before_last = columns_of(indent);
  for (std::size_t c = 0; c + 1 < columns.size(); ++c) before_last += columns[c] + 2;
  // Below 24 columns a wrapped cell is harder to read than a line that runs over.
  const std::size_t last = width > before_last + 24 ? width - before_last : 0;

  std::string out;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    out += indent;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      const bool is_last = c + 1 == cells.size();
      const std::string pad = padding(columns[c], cells[c]);
      if (columns_[c].align == Align::kRight) {
        out += pad + cells[c] + (is_last ? "" : "  ");
      } else if (!is_last) {
        out += cells[c] + pad + "  ";
      } else if (last == 0) {
        out += cells[c];
      } else {
        const auto lines = wrapped(cells[c], last);
        for (std::size_t l = 0; l < lines.size(); ++l) {
          if (l > 0) out.append("\n").append(before_last, ' ');
          out += lines[l];
        }
      }
    }
    strip_line_end(out);
  };

  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  if (std::ranges::any_of(titles, [](const std::string& title) { return !title.empty(); })) add_line(titles);
  for (const auto& row : rows_) add_line(row);
  return out;
}

std::string TextTable::markdown() const {
  std::string out = "|", rule = "|";
  for (const Column& column : columns_) {
    out += fmt::format(" {} |", markdown_cell(column.title));
    rule += column.align == Align::kRight ? "---:|" : "---|";
  }
  out += fmt::format("\n{}\n", rule);
  for (const auto& row : rows_) {
    out += "|";
    for (const std::string& cell : row) out += fmt::format(" {} |", markdown_cell(cell));
    out += "\n";
  }
  return out;
}

}  // namespace trireme

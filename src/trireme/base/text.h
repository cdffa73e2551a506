// base/text.h -- words for people: did-you-mean, tables with aligned columns, names of enumerators.
//
// Depends on: std.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// An enumerator and the name users write for it. An enum that users can write has one function,
///   std::span<const Named<Color>> enum_names(std::type_identity<Color>);
/// beside it; recipes, flags and messages all read that.
template <typename Enum>
struct Named {
  std::string_view name;
  Enum value;
};

template <typename Enum>
std::string_view name_in(std::span<const Named<Enum>> names, Enum value) {
  for (const auto& entry : names) {
    if (entry.value == value) return entry.name;
  }
  return "?";
}

/// How many letters must be inserted, dropped, changed or swapped with their neighbour to turn one word into the other;
/// case does not count.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate that `word` was probably meant to be; nothing when none is near.
std::optional<std::string> closest(std::string_view word, std::span<const std::string> candidates);

/// `; did you mean "ranks"?` or an empty text: to be appended to a message.
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates);

/// "a, b and c".
std::string listed(std::span<const std::string> words);

/// "1 problem", "2 problems".
std::string counted(std::size_t count, std::string_view word);

/// Columns a text takes on a terminal: code points, as all our text is Latin letters and a few signs.
std::size_t columns_of(std::string_view text);

std::string_view trimmed(std::string_view text);
std::vector<std::string> split(std::string_view text, char separator);

/// Breaks at spaces so that no line is longer than `width` (words that are longer stay whole).
std::vector<std::string> wrapped(std::string_view text, std::size_t width);

/// Rows of text under a header, as aligned columns or as Markdown.
class TextTable {
 public:
  enum class Align : std::uint8_t { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// One cell for each column.
  void add(std::vector<std::string> cells);
  std::size_t rows() const { return rows_.size(); }

  /// Two spaces between columns, none at line ends. `width` wraps the last column, so that a line fits a terminal.
  std::string text(std::string_view indent = "", std::size_t width = 0) const;
  std::string markdown() const;

 private:
  std::vector<std::size_t> widths() const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace trireme

// science/table.h -- a CSV file as named columns, and its columns as the inputs and targets of a regression.
//
// The first line names the columns. Fields may stand in quotes, "" inside them is a quote. Every line has as many
// fields as the first; an empty field is an error with its line, since nobody can tell what it stands for.
// Depends on: matrix.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/science/matrix.h"

namespace trireme::science {

struct Table {
  std::string source;                           // for messages: the file's name
  std::vector<std::string> names;               // of columns
  std::vector<std::vector<std::string>> cells;  // [row][column]

  /// ConfigError with the names that there are.
  std::size_t column(std::string_view name) const;
};

Table parse_csv(std::string_view text, std::string source);
Table read_csv(const std::filesystem::path& path);
/// A field as it stands in a CSV file: in quotes where it must.
std::string csv_field(std::string_view text);

enum class Family : std::uint8_t {
  kGaussian,     ///< targets are numbers: a normal density around a linear function
  kMultinomial,  ///< the target is a class: softmax of linear functions; with two classes Bernoulli
};

/// How the columns of a table become numbers: part of a fitted model, so that it reads other tables alike.
struct Columns {
  Family family = Family::kGaussian;
  std::vector<std::string> inputs = {}, targets = {};
  std::vector<std::string> classes = {};        // kMultinomial: the values of the one target, sorted
  std::vector<double> means = {}, scales = {};  // of inputs: (x - mean) / scale is what is regressed on
  std::size_t outputs() const { return family == Family::kGaussian ? targets.size() : classes.size(); }
  bool operator==(const Columns&) const = default;
};

struct ColumnChoice {
  std::vector<std::string> targets;
  std::vector<std::string> inputs;  // empty: all others
  bool classes = false;             // numbers in the target are names of classes
};
/// Which columns of `table` a regression takes, with means and standard deviations over all of its rows. A target that
/// is not a number everywhere is a class.
Columns choose_columns(const Table& table, const ColumnChoice& choice);

struct Samples {
  Matrix inputs;   // rows x (inputs + 1), standardised; the last column is 1
  Matrix targets;  // rows x outputs: numbers, or 1 in the column of the class
  std::size_t count() const { return inputs.rows; }
};
/// The rows of a table by `columns`; without targets where `with_targets` is not set.
Samples to_samples(const Table& table, const Columns& columns, bool with_targets = true);
/// Some of the rows.
Samples pick(const Samples& samples, const std::vector<std::size_t>& rows);

}  // namespace trireme::science

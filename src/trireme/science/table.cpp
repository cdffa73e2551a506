#include "trireme/science/table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"
#include "trireme/base/text.h"

namespace trireme::science {
namespace {

/// The fields of the record at `at`, which moves behind it. A record ends at a line's end outside quotes.
std::vector<std::string> take_record(std::string_view text, std::size_t& at, const std::string& source,
                                     std::size_t line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      if (c != '"') {
        fields.back() += c;
      } else if (at + 1 < text.size() && text[at + 1] == '"') {
        fields.back() += text[++at];
      } else {
        quoted = false;
      }
    } else if (c == '"' && trimmed(fields.back()).empty()) {
      quoted = true, fields.back().clear();
    } else if (c == ',') {
      fields.emplace_back();
    } else if (c == '\n') {
      break;
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  if (quoted)
    throw ConfigError(fmt::format("{}:{}: a field in quotes does not end", source, line), "add the closing quote");
  ++at;
  for (std::string& field : fields) field = std::string(trimmed(field));
  return fields;
}

std::optional<double> number_in(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

bool is_numeric(const Table& table, std::size_t column) {
  return std::ranges::all_of(table.cells, [&](const auto& row) { return number_in(row[column]).has_value(); });
}

double cell_number(const Table& table, std::size_t row, std::size_t column) {
  const std::string& cell = table.cells[row][column];
  if (const auto value = number_in(cell)) return *value;
  throw ConfigError(fmt::format("{}: column \"{}\" has \"{}\" in data row {}, which is no finite number", table.source,
                                table.names[column], cell, row + 1),
                    "leave the column out by naming the others with --inputs, or turn it into numbers");
}

}  // namespace

std::size_t Table::column(std::string_view name) const {
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) {
    throw ConfigError(fmt::format("{} has no column \"{}\"{}", source, name, did_you_mean(name, names)),
                      fmt::format("its columns are {}", listed(names)));
  }
  return static_cast<std::size_t>(found - names.begin());
}

Table parse_csv(std::string_view text, std::string source) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // a byte order mark
  Table table{.source = std::move(source), .names = {}, .cells = {}};
  std::size_t at = 0, line = 1;
  while (at < text.size()) {
    const std::size_t begin = at, first_line = line;
    std::vector<std::string> fields = take_record(text, at, table.source, line);
    line += static_cast<std::size_t>(std::ranges::count(text.substr(begin, at - begin), '\n'));
    if (fields.size() == 1 && fields[0].empty()) continue;  // a blank line
    const auto empty = std::ranges::find(fields, "");
    if (empty != fields.end()) {
      throw ConfigError(fmt::format("{}:{}: field {} is empty", table.source, first_line, empty - fields.begin() + 1),
                        "fill it in, or leave the line out: missing values are not guessed");
    }
    if (table.names.empty()) {
      table.names = std::move(fields);
      if (std::set<std::string>(table.names.begin(), table.names.end()).size() != table.names.size()) {
        throw ConfigError(fmt::format("{}: two columns have the same name", table.source), "give each its own name");
      }
    } else if (fields.size() != table.names.size()) {
      throw ConfigError(fmt::format("{}:{}: {} fields, but the first line names {} columns", table.source, first_line,
                                    fields.size(), table.names.size()),
                        "put quotes around fields with commas");
    } else {
      table.cells.push_back(std::move(fields));
    }
  }
  if (table.cells.empty()) {
    throw ConfigError(fmt::format("{} has no rows of data", table.source),
                      "the first line names the columns, each further line is a sample");
  }
  return table;
}

Table read_csv(const std::filesystem::path& path) {
  const MappedFile file(path);
  return parse_csv(file.text(), path.filename().string());
}

std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\n\r") == std::string_view::npos) return std::string(text);
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + '"';
}

Columns choose_columns(const Table& table, const ColumnChoice& choice) {
  if (choice.targets.empty()) throw ConfigError("no target is named", "name the column to predict with --target");
  Columns columns{.family = Family::kGaussian, .inputs = choice.inputs, .targets = choice.targets};
  std::set<std::string> taken(choice.targets.begin(), choice.targets.end());
  bool classes = choice.classes;
  for (const std::string& name : columns.targets) classes = classes || !is_numeric(table, table.column(name));
  if (columns.inputs.empty()) {
    for (const std::string& name : table.names) {
      if (!taken.contains(name)) columns.inputs.push_back(name);
    }
  }
  for (const std::string& name : columns.inputs) {
    table.column(name);
    if (!taken.insert(name).second) {
      throw ConfigError(fmt::format("column \"{}\" is named twice among targets and inputs", name), "name it once");
    }
  }
  if (columns.inputs.empty())
    throw ConfigError(fmt::format("{} has no column beside the targets", table.source), "add inputs");
  if (classes) {
    if (columns.targets.size() != 1) {
      throw ConfigError("several targets, of which one is a class", "predict a class by itself: one --target");
    }
    columns.family = Family::kMultinomial;
    std::set<std::string> values;
    for (const auto& row : table.cells) values.insert(row[table.column(columns.targets[0])]);
    columns.classes.assign(values.begin(), values.end());
    if (columns.classes.size() < 2) {
      throw ConfigError(fmt::format("every row has the class \"{}\"", columns.classes[0]),
                        "there is nothing to predict");
    }
    constexpr std::size_t kMostClasses = 100;
    if (columns.classes.size() > kMostClasses) {
      throw ConfigError(fmt::format("column \"{}\" has {} classes; at most {} are taken", columns.targets[0],
                                    columns.classes.size(), kMostClasses),
                        "is it a number with a unit, or a name? numbers alone are regressed on");
    }
  }
  for (const std::string& name : columns.inputs) {
    const std::size_t column = table.column(name);
    double sum = 0, squares = 0;
    for (std::size_t row = 0; row < table.cells.size(); ++row) sum += cell_number(table, row, column);
    const double mean = sum / static_cast<double>(table.cells.size());
    for (std::size_t row = 0; row < table.cells.size(); ++row) {
      squares += std::pow(cell_number(table, row, column) - mean, 2);
    }
    const double deviation = std::sqrt(squares / static_cast<double>(table.cells.size()));
    if (!(deviation > 0)) {
      throw ConfigError(fmt::format("{}: column \"{}\" is {} everywhere", table.source, name, mean),
                        "leave it out by naming the other columns with --inputs");
    }
    columns.means.push_back(mean);
    columns.scales.push_back(deviation);
  }
  return columns;
}

Samples to_samples(const Table& table, const Columns& columns, bool with_targets) {
  const std::size_t count = table.cells.size(), inputs = columns.inputs.size();
  Samples samples{.inputs = Matrix(count, inputs + 1),
                  .targets = with_targets ? Matrix(count, columns.outputs()) : Matrix()};
  for (std::size_t i = 0; i < inputs; ++i) {
    const std::size_t column = table.column(columns.inputs[i]);
    for (std::size_t row = 0; row < count; ++row) {
      samples.inputs(row, i) = (cell_number(table, row, column) - columns.means[i]) / columns.scales[i];
    }
  }
  for (std::size_t row = 0; row < count; ++row) samples.inputs(row, inputs) = 1;
  if (!with_targets) return samples;
  for (std::size_t k = 0; k < columns.targets.size(); ++k) {
    const std::size_t column = table.column(columns.targets[k]);
    for (std::size_t row = 0; row < count; ++row) {
      if (columns.family == Family::kGaussian) {
        samples.targets(row, k) = cell_number(table, row, column);
        continue;
      }
      const std::string& cell = table.cells[row][column];
      const auto found = std::ranges::find(columns.classes, cell);
      if (found == columns.classes.end()) {
        throw ConfigError(fmt::format("{}: data row {} has the class \"{}\", which the model was not fitted to",
                                      table.source, row + 1, cell),
                          fmt::format("its classes are {}", listed(columns.classes)));
      }
      samples.targets(row, static_cast<std::size_t>(found - columns.classes.begin())) = 1;
    }
  }
  return samples;
}

Samples pick(const Samples& samples, const std::vector<std::size_t>& rows) {
  Samples out{.inputs = Matrix(rows.size(), samples.inputs.columns),
              .targets = Matrix(rows.size(), samples.targets.columns)};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::ranges::copy(samples.inputs.row(rows[i]), out.inputs.row(i).begin());
    std::ranges::copy(samples.targets.row(rows[i]), out.targets.row(i).begin());
  }
  return out;
}

}  // namespace trireme::science

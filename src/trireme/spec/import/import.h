// spec/import/import.h -- configurations of other programs as recipes: DeepSpeed's JSON, Megatron-LM's arguments,
// torchtitan's TOML.
//
// A source is a table, one file each: a row for every key it may have. A key becomes recipe keys, is listed as without
// effect here, with the reason, or is refused; a key that no row knows is refused too. So nothing that stands in a
// configuration is dropped in silence. What a program does when a key is absent is written down as well where ours
// would do otherwise (its defaults). The recipe that comes out says at each line where it came from.
// Depends on: base (config nodes), recipe.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/config/node.h"

namespace trireme::spec {

/// A key of a foreign configuration, "zero_optimization.stage", and its value.
struct ForeignKey {
  std::string name;
  config::Node value;
  bool is_default = false;  ///< not in the configuration: what the program takes when it is absent
};

/// Tables in tables as dotted names, in the order of the file. Lists stay values.
std::vector<ForeignKey> flattened(const config::Node& table);
/// As it stands in messages: 0.1, true, "adam", [1, 2].
std::string foreign_text(const config::Node& value);

class RecipeImport;

/// What becomes of a key. Exactly one of `key`, `take`, `without`, `refuse` and `neutral` says so.
struct ImportRow {
  std::string_view name;        ///< of the foreign key; "autotuning.*" is all keys of a table
  std::string_view key = {};    ///< recipe key with the same meaning and unit
  std::string_view value = {};  ///< with `key`: its value, as TOML, whenever the foreign key is there
  void (*take)(RecipeImport& import, const ForeignKey& given) = nullptr;  ///< anything else
  std::string_view without = {};                                          ///< no effect here: why
  std::string_view refuse = {};                                           ///< why it cannot be had
  /// Values with which nothing is asked for, "false|0|none": with those without effect, with others refused because of
  /// `refuse`.
  std::string_view neutral = {};
  /// A key that must be true for this one to count, "fp16.enabled".
  std::string_view enabled_by = {};
};

/// `take` of a key that another row, or `finish`, looks at.
inline void take_with_others(RecipeImport&, const ForeignKey&) {}

struct ImportSource {
  std::string_view name;         ///< "DeepSpeed"
  std::string_view prefix = {};  ///< of keys where they are named: "--"
  std::span<const ImportRow> rows;
  /// Keys that count as given where they are absent, as TOML values.
  std::span<const std::pair<std::string_view, std::string_view>> defaults;
  /// What follows from several keys together; after all rows.
  void (*finish)(RecipeImport& import);
};

const ImportSource& deepspeed_source();
const ImportSource& megatron_source();
const ImportSource& torchtitan_source();

/// "--num-layers 24 --bf16 ..." as a table of keys without the dashes; also as it stands in shell scripts, with quotes
/// and lines that end in a backslash. ConfigError for words before the first argument.
config::Node parse_arguments(std::string_view text);
/// A number where a word is one, else text.
config::Node argument_value(const std::string& word);

struct ImportOptions {
  std::string file;                    ///< for the first line of the recipe
  std::vector<std::string> sets;       ///< "model.family=gpt2": what the configuration does not say, or says otherwise
  std::vector<std::string> leave_out;  ///< foreign keys that would be refused: left out knowingly
};

/// The recipe as text. Throws config::ProblemsError with every key that is refused.
std::string import_recipe(const ImportSource& source, const config::Node& configuration, const ImportOptions& options);

/// While rows are applied: what was given, and the recipe so far.
class RecipeImport {
 public:
  RecipeImport(const ImportSource& source, const config::Node& configuration, const ImportOptions& options);
  std::string recipe();

  /// Whether the configuration has the key (a default counts unless `also_defaults` is not set).
  bool has(std::string_view name, bool also_defaults = true) const;
  /// By the key's value; `otherwise` where it is absent or of another kind.
  bool flag(std::string_view name) const;
  double number(std::string_view name, double otherwise = 0) const;
  std::string text(std::string_view name) const;

  /// The key as the recipe's comments name it: "--lr", "--seed, its default".
  std::string origin(const ForeignKey& given) const;
  /// `value` as TOML. A later one replaces an earlier one; --set replaces both.
  void set(const std::string& key, std::string value, const std::string& from);
  void set(const std::string& key, std::int64_t value, const std::string& from);
  void set(const std::string& key, double value, const std::string& from);
  void set_text(const std::string& key, std::string_view value, const std::string& from);
  /// What was set, as a number; nothing where it was not.
  std::optional<double> value_of(const std::string& key) const;
  /// What --set says of a recipe key.
  std::optional<std::string> override_of(std::string_view key) const;
  bool is_set(const std::string& key) const { return settings_.contains(key); }
  void add_source(const std::string& path, std::optional<double> weight, bool validation, const std::string& from);

  void without_effect(const ForeignKey& given, std::string_view why);
  void refuse(const ForeignKey& given, std::string_view why, std::string_view hint = {});
  /// A line at the end of the recipe: what is assumed, or left to be given.
  void note(std::string text);

 private:
  void apply(const ImportRow& row, const ForeignKey& given);
  const ImportRow* row_for(std::string_view name) const;
  const ForeignKey* find(std::string_view name) const;
  bool is_named(std::string_view name) const;

  struct Setting {
    std::string value, from;
  };
  struct DataSource {
    std::string path;
    std::optional<double> weight;
    std::string from;
  };
  struct Refusal {
    std::string name, value, why, hint;
  };

  const ImportSource& source_;
  const ImportOptions& options_;
  std::vector<ForeignKey> keys_;
  std::map<std::string, Setting> settings_;
  std::vector<DataSource> data_, validation_;
  std::vector<std::string> without_, notes_, left_out_;
  std::vector<Refusal> refused_;
};

/// A TOML string.
std::string toml_text(std::string_view text);
/// A number as short as it reads back; with a point or an exponent.
std::string toml_number(double value);

}  // namespace trireme::spec

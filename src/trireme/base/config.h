// base/config.h -- a typed struct from a TOML file and --set overrides, with every mistake reported at once.
//
//   auto recipe = config::load<Recipe>({.file = "recipes/tiny.toml", .sets = {"comm.ranks=4"}});
//   recipe.value.comm.ranks          // 4
//   config::show(recipe)             // TOML again, each line with where its value came from
//   config::docs_text(config::schema_of<Recipe>())
//
// Which keys there are is described once, beside the struct: base/config/schema.h. A struct with
//   std::vector<config::Problem> find_problems(const Recipe&);
// beside it also has its values checked against each other.
// Depends on: error, text, units; toml++ behind config/node.cpp.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/config/schema.h"
#include "trireme/base/error.h"

namespace trireme::config {

/// One thing that is wrong.
struct Problem {
  std::string key;     // "comm.ranks"
  std::string reason;  // "must be at least 1, but is 0"
  std::string hint;    // what would work; may be empty
  std::string where;   // "recipes/tiny.toml:7" or "--set"; filled in by load() when left empty
  bool operator==(const Problem&) const = default;
};

/// All that is wrong, as one error.
class ProblemsError : public ConfigError {
 public:
  ProblemsError(std::string_view what, std::vector<Problem> problems);
  const std::vector<Problem>& problems() const { return problems_; }

 private:
  std::vector<Problem> problems_;
};

/// "comm.ranks=4", and who says so: "--set", or the name of an environment variable.
struct Override {
  std::string assignment, origin;
};

/// What a configuration is read from; later members beat earlier ones.
struct Input {
  std::optional<std::string> file = {};  // path of a TOML file; none: defaults only
  std::optional<std::string> text = {};  // its content, when it is not to be read from disk
  std::vector<Override> environment = {};
  /// "comm.ranks=4". The value is read by the key's type, so texts need no quotes; lists are "1,2,3"; an entry of
  /// [[tables]] is named by its number, "data.0.path=x"; nothing after '=' unsets an optional key and empties a list.
  std::vector<std::string> sets = {};
};

/// Where values came from: "comm.ranks" -> "recipes/tiny.toml:7", "--set" or a variable. Keys that are not there have
/// their default.
using Origins = std::map<std::string, std::string>;

template <typename T>
struct Loaded {
  T value;
  Origins origins;
};

/// Reads into `object`, the struct that `schema` describes. Keys with problems keep their default.
Origins read_into(const Schema& schema, void* object, const Input& input, std::vector<Problem>& problems);
/// Adds problems between values that were all right by themselves; fills in where.
void add_cross_problems(std::vector<Problem> found, const Origins& origins, const Input& input,
                        std::vector<Problem>& problems);
/// What problems are said to be of: the file, or "the configuration".
std::string title(const Input& input);

/// Throws ProblemsError with everything that is wrong.
template <typename T>
Loaded<T> load(const Input& input) {
  Loaded<T> loaded;
  std::vector<Problem> problems;
  loaded.origins = read_into(schema_of<T>(), &loaded.value, input, problems);
  if constexpr (requires { find_problems(loaded.value); }) {
    add_cross_problems(find_problems(loaded.value), loaded.origins, input, problems);
  }
  if (!problems.empty()) throw ProblemsError(title(input), std::move(problems));
  return loaded;
}

/// TOML that reads back as the same values; with `origins`, each line says where its value came from.
std::string write_toml(const Schema& schema, const void* object, const Origins* origins = nullptr);
template <typename T>
std::string to_toml(const T& value) {
  return write_toml(schema_of<T>(), &value);
}
template <typename T>
std::string show(const Loaded<T>& loaded) {
  return write_toml(schema_of<T>(), &loaded.value, &loaded.origins);
}

/// Keys of two structs of one schema that have different values, with both: "train.steps: 200 and 400".
std::vector<std::string> differences(const Schema& schema, const void* left, const void* right);

/// Every key with type, default and meaning: for a terminal of `width` columns, or as Markdown.
std::string docs_text(const Schema& schema, std::size_t width = 120);
std::string docs_markdown(const Schema& schema);

/// A field's type and limits in words, "a whole number from 1 to 8"; one end of the range; and a value as TOML.
std::string type_text(const Field& field);
std::string bound_text(const Field& field, const Bound& bound);
std::string value_text(const Field& field, const Value& value);

}  // namespace trireme::config

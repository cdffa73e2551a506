#include "trireme/spec/import/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "trireme/base/config.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/spec/recipe.h"

namespace trireme::spec {
namespace {

using config::Node;

void flatten_into(const Node& table, const std::string& above, std::vector<ForeignKey>& out) {
  for (const Node::Member& member : table.members) {
    // A dot within a key is no table: the program that the file is for does not know that key either.
    const std::string own = member.name.find('.') == std::string::npos ? member.name : '"' + member.name + '"';
    const std::string name = above.empty() ? own : above + "." + own;
    if (member.value.kind == Node::Kind::kTable && !member.value.members.empty()) {
      flatten_into(member.value, name, out);
    } else {
      out.push_back({.name = name, .value = member.value});
    }
  }
}

/// "compression_training.*" stands for all keys of that table.
bool row_matches(std::string_view pattern, std::string_view name) {
  if (!pattern.ends_with(".*") && !pattern.ends_with("-*")) return pattern == name;
  const std::string_view head = pattern.substr(0, pattern.size() - 1);
  return name.starts_with(head) || name == pattern.substr(0, pattern.size() - 2);
}

/// As a word of `neutral`: texts without quotes.
std::string bare_text(const Node& value) {
  return value.kind == Node::Kind::kText || value.kind == Node::Kind::kRaw ? value.text : foreign_text(value);
}

/// Sections in the order of the recipe's own documentation.
constexpr const char* kImportSections[] = {
    "run",   "model",     "model.rotary",         "data",  "comm", "layout",     "pipeline", "optim", "lr_schedule",
    "batch", "precision", "precision.loss_scale", "train", "eval", "checkpoint", "health",   "log"};

}  // namespace

std::vector<ForeignKey> flattened(const Node& table) {
  std::vector<ForeignKey> out;
  flatten_into(table, "", out);
  return out;
}

std::string toml_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string toml_number(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string foreign_text(const Node& value) {
  switch (value.kind) {
    case Node::Kind::kBool:
      return value.boolean ? "true" : "false";
    case Node::Kind::kWhole:
      return fmt::format("{}", value.whole);
    case Node::Kind::kReal:
      return toml_number(value.real);
    case Node::Kind::kText:
    case Node::Kind::kRaw:
    case Node::Kind::kDate:
      return toml_text(value.text);
    case Node::Kind::kList: {
      std::vector<std::string> items;
      for (const Node& item : value.items) items.push_back(foreign_text(item));
      return fmt::format("[{}]", fmt::join(items, ", "));
    }
    case Node::Kind::kTable:
      return "{}";
  }
  return "?";
}

RecipeImport::RecipeImport(const ImportSource& source, const Node& configuration, const ImportOptions& options)
    : source_(source), options_(options), keys_(flattened(configuration)) {
  for (const auto& [name, value] : source.defaults) {
    if (has(name)) continue;
    keys_.push_back({.name = std::string(name), .value = config::parse_toml_value(value), .is_default = true});
  }
  std::vector<std::string> unused = options.leave_out;
  for (const std::string& assignment : options.sets) {
    const std::size_t equals = assignment.find('=');
    if (equals == std::string::npos) {
      throw ConfigError(fmt::format("--set {}: no \"=\"", assignment), "write --set section.key=value");
    }
  }
  const std::vector<ForeignKey> keys = keys_;
  for (const ForeignKey& given : keys) {
    if (std::erase(unused, given.name) > 0) {
      left_out_.push_back(fmt::format("{} = {}", given.name, foreign_text(given.value)));
      std::erase_if(keys_, [&](const ForeignKey& key) { return key.name == given.name; });
    }
  }
  if (!unused.empty()) {
    throw ConfigError(fmt::format("--leave-out {}: the configuration has no such key", unused[0]), "leave it away");
  }
  const std::vector<ForeignKey> taken = keys_;
  for (const ForeignKey& given : taken) {
    if (const ImportRow* row = row_for(given.name)) {
      apply(*row, given);
      continue;
    }
    std::vector<std::string> names;
    for (const ImportRow& known : source.rows) names.emplace_back(known.name);
    refuse(given, fmt::format("no key of {} that is known here{}", source.name, did_you_mean(given.name, names)),
           fmt::format("look whether it matters; if not, --leave-out {}", given.name));
  }
  if (source.finish != nullptr) source.finish(*this);
  // Keys that rows leave to finish(): whatever came of them, each stands somewhere.
  for (const ForeignKey& given : taken) {
    if (!given.is_default && !is_named(given.name)) {
      without_effect(given, "counts together with other keys; nothing of it is left to set");
    }
  }
}

bool RecipeImport::is_named(std::string_view name) const {
  const auto in = [name](const std::string& text) { return text.find(name) != std::string::npos; };
  return std::ranges::any_of(settings_, [&](const auto& setting) { return in(setting.second.from); }) ||
         std::ranges::any_of(data_, in, &DataSource::from) || std::ranges::any_of(validation_, in, &DataSource::from) ||
         std::ranges::any_of(without_, in) || std::ranges::any_of(notes_, in) ||
         std::ranges::any_of(refused_, in, &Refusal::name);
}

const ImportRow* RecipeImport::row_for(std::string_view name) const {
  const ImportRow* found = nullptr;
  for (const ImportRow& row : source_.rows) {
    // The longest pattern counts: a table as a whole, but for some of its keys.
    if (row_matches(row.name, name) && (found == nullptr || row.name.size() > found->name.size())) found = &row;
  }
  return found;
}

const ForeignKey* RecipeImport::find(std::string_view name) const {
  const auto found = std::ranges::find(keys_, name, &ForeignKey::name);
  return found == keys_.end() ? nullptr : &*found;
}

bool RecipeImport::has(std::string_view name, bool also_defaults) const {
  const ForeignKey* key = find(name);
  return key != nullptr && (also_defaults || !key->is_default);
}

bool RecipeImport::flag(std::string_view name) const {
  const ForeignKey* key = find(name);
  return key != nullptr && (bare_text(key->value) == "true" || bare_text(key->value) == "True");
}

double RecipeImport::number(std::string_view name, double otherwise) const {
  const ForeignKey* key = find(name);
  if (key == nullptr) return otherwise;
  if (key->value.kind == Node::Kind::kWhole) return static_cast<double>(key->value.whole);
  if (key->value.kind == Node::Kind::kReal) return key->value.real;
  const std::string word = bare_text(key->value);
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error == std::errc() && end == word.data() + word.size() ? value : otherwise;
}

std::string RecipeImport::text(std::string_view name) const {
  const ForeignKey* key = find(name);
  return key == nullptr ? std::string() : bare_text(key->value);
}

void RecipeImport::set(const std::string& key, std::string value, const std::string& from) {
  settings_[key] = {.value = std::move(value), .from = from};
}
void RecipeImport::set(const std::string& key, std::int64_t value, const std::string& from) {
  set(key, fmt::format("{}", value), from);
}
void RecipeImport::set(const std::string& key, double value, const std::string& from) {
  set(key, toml_number(value), from);
}
void RecipeImport::set_text(const std::string& key, std::string_view value, const std::string& from) {
  set(key, toml_text(value), from);
}

std::optional<double> RecipeImport::value_of(const std::string& key) const {
  const auto found = settings_.find(key);
  if (found == settings_.end()) return std::nullopt;
  const std::string& word = found->second.value;
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

std::optional<std::string> RecipeImport::override_of(std::string_view key) const {
  for (const std::string& assignment : options_.sets) {
    if (assignment.starts_with(key) && assignment.size() > key.size() && assignment[key.size()] == '=') {
      return assignment.substr(key.size() + 1);
    }
  }
  return std::nullopt;
}

void RecipeImport::add_source(const std::string& path, std::optional<double> weight, bool validation,
                              const std::string& from) {
  (validation ? validation_ : data_).push_back({.path = path, .weight = weight, .from = from});
}

void RecipeImport::without_effect(const ForeignKey& given, std::string_view why) {
  if (given.is_default) return;  // nobody asked for it
  without_.push_back(fmt::format("{} = {}: {}", given.name, foreign_text(given.value), why));
}

void RecipeImport::refuse(const ForeignKey& given, std::string_view why, std::string_view hint) {
  refused_.push_back({.name = given.name,
                      .value = foreign_text(given.value),
                      .why = std::string(why),
                      .hint = hint.empty() ? fmt::format("change it, or import without it: --leave-out {}", given.name)
                                           : std::string(hint)});
}

void RecipeImport::note(std::string text) { notes_.push_back(std::move(text)); }

void RecipeImport::apply(const ImportRow& row, const ForeignKey& given) {
  const std::string value = bare_text(given.value);
  if (value == "auto") {
    without_effect(given, "filled in by the program that reads it; what is not given otherwise has its default here");
    return;
  }
  if (value == "null" || value.empty()) {
    without_effect(given, "stands for the default");
    return;
  }
  if (!row.enabled_by.empty() && row.enabled_by != given.name && !flag(row.enabled_by)) {
    without_effect(given, fmt::format("{} is not true", row.enabled_by));
    return;
  }
  if (!row.neutral.empty() || (!row.refuse.empty() && row.take == nullptr)) {
    const std::vector<std::string> words = split(row.neutral, '|');
    if (std::ranges::find(words, value) != words.end() && !row.neutral.empty()) {
      without_effect(given, "asks for nothing");
    } else {
      refuse(given, row.refuse);
    }
    return;
  }
  if (!row.without.empty()) {
    without_effect(given, row.without);
    return;
  }
  if (row.take != nullptr) {
    row.take(*this, given);
    return;
  }
  if (given.is_default && is_set(std::string(row.key))) return;  // said by another key
  if (!row.value.empty()) {
    set(std::string(row.key), std::string(row.value), origin(given));
    return;
  }
  const bool is_text = given.value.kind == Node::Kind::kText;
  std::string taken = is_text                                ? toml_text(value)
                      : given.value.kind == Node::Kind::kRaw ? value
                                                             : foreign_text(given.value);
  set(std::string(row.key), std::move(taken), origin(given));
}

std::string RecipeImport::origin(const ForeignKey& given) const {
  return fmt::format("{}{}{}", source_.prefix, given.name, given.is_default ? ", its default" : "");
}

std::string RecipeImport::recipe() {
  if (!refused_.empty()) {
    std::vector<config::Problem> problems;
    for (const Refusal& refusal : refused_) {
      problems.push_back({.key = refusal.name,
                          .reason = fmt::format("is {}: {}", refusal.value, refusal.why),
                          .hint = refusal.hint,
                          .where = options_.file});
    }
    throw config::ProblemsError(fmt::format("{} of {}", options_.file, source_.name), std::move(problems));
  }
  for (const std::string& assignment : options_.sets) {
    const std::size_t equals = assignment.find('=');
    const std::string value = assignment.substr(equals + 1);
    std::string toml = value;
    try {
      config::parse_toml_value(value);
    } catch (const config::SyntaxError&) {
      toml = toml_text(value);  // as --set of other commands: texts need no quotes
    }
    set(assignment.substr(0, equals), toml, "--set");
  }
  std::string out = fmt::format(
      "# From {}'s {}, by `trireme recipe import`. Each line says which key it came from; what has no\n"
      "# effect here is listed at the end. `trireme check` says what is still missing.\n",
      source_.name, options_.file.empty() ? "arguments" : options_.file);
  std::set<std::string> written;
  for (const char* section : kImportSections) {
    std::string lines;
    for (const auto& [key, setting] : settings_) {
      const std::size_t dot = key.rfind('.');
      if (dot == std::string::npos || key.substr(0, dot) != section) continue;
      lines += fmt::format("{} = {}  # {}\n", key.substr(dot + 1), setting.value, setting.from);
      written.insert(key);
    }
    if (!lines.empty()) out += fmt::format("\n[{}]\n{}", section, lines);
    if (std::string_view(section) != "data") continue;
    for (const auto& [list, name] : {std::pair{&data_, "sources"}, {&validation_, "validation"}}) {
      for (const DataSource& entry : *list) {
        out += fmt::format("\n[[data.{}]]\npath = {}  # {}\n", name, toml_text(entry.path), entry.from);
        if (entry.weight) out += fmt::format("weight = {}\n", toml_number(*entry.weight));
      }
    }
  }
  for (const auto& [key, setting] : settings_) {
    if (!written.contains(key)) {
      throw ConfigError(fmt::format("--set {}: a recipe has no such key", key),
                        "`trireme recipe docs` lists all of them");
    }
  }
  const auto listing = [&out](std::string_view title, const std::vector<std::string>& lines) {
    if (lines.empty()) return;
    out += fmt::format("\n# {}\n", title);
    for (const std::string& line : lines) {
      bool first = true;
      for (const std::string& part : wrapped(line, 112)) {
        out += fmt::format("#   {}{}\n", first ? "" : "  ", part);
        first = false;
      }
    }
  };
  listing("Left out on request (--leave-out):", left_out_);
  listing("Without effect here:", without_);
  listing("Notes:", notes_);
  return out;
}

std::string import_recipe(const ImportSource& source, const Node& configuration, const ImportOptions& options) {
  return RecipeImport(source, configuration, options).recipe();
}

}  // namespace trireme::spec

#include "trireme/cli/command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>

#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

/// Why `text` is not a number that `allows` allows, in words; empty when it is one.
template <typename Allows>
std::string number_error(const std::string& text, const std::string& what, const Allows& allows) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::invalid_argument || end != text.data() + text.size()) {
    return fmt::format("\"{}\" is not a number", text);
  }
  return allows(value) ? "" : fmt::format("{} is not {}", text, what);
}

}  // namespace

std::string help_text(const CLI::Option& option) {
  const std::string text = option.get_default_str();
  const std::string& meaning = option.get_description();
  const bool said = meaning.find("default") != std::string::npos;  // in words that say more
  return text.empty() || said || option.get_required() ? meaning : fmt::format("{} [default: {}]", meaning, text);
}

namespace {

OptionDoc doc_of(const CLI::Option& option) {
  const bool takes_value = !option.get_positional() && option.get_items_expected_max() > 0;
  return {.names = option.get_positional() ? option.get_name(true) : option.get_name(false, true),
          .value = takes_value ? option.get_type_name() : "",
          .meaning = help_text(option)};
}

void add_command_docs(const CLI::App& app, const std::string& above, std::vector<CommandDoc>& docs) {
  CommandDoc& doc = docs.emplace_back();
  doc.name = above.empty() ? app.get_name() : fmt::format("{} {}", above, app.get_name());
  doc.about = app.get_description();
  doc.footer = app.get_footer();
  for (const CLI::Option* option : app.get_options()) {
    if (option == app.get_help_ptr() && !above.empty()) continue;  // every command has it
    doc.options.push_back(doc_of(*option));
  }
  const std::string name = doc.name;
  for (const CLI::App* below : app.get_subcommands([](const CLI::App*) { return true; }))
    add_command_docs(*below, name, docs);
}

}  // namespace

Option& Option::type_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}
Option& Option::required(bool is) {
  option_->required(is);
  return *this;
}
Option& Option::show_default() {
  option_->capture_default_str();
  return *this;
}
Option& Option::show_default(const std::string& text) {
  option_->default_str(text);
  return *this;
}
Option& Option::positive() {
  option_->check(
      [](const std::string& text) { return number_error(text, "positive", [](double value) { return value > 0; }); });
  return *this;
}
Option& Option::not_negative() {
  option_->check([](const std::string& text) {
    return number_error(text, "zero or more", [](double value) { return value >= 0; });
  });
  return *this;
}
Option& Option::within(double least, double most) {
  option_->check([least, most](const std::string& text) {
    return number_error(text, fmt::format("from {} to {}", least, most),
                        [=](double value) { return least <= value && value <= most; });
  });
  return *this;
}
Option& Option::one_of(const std::vector<std::string>& words) {
  option_->check([words](const std::string& text) {
    if (std::ranges::find(words, text) != words.end()) return std::string();
    return fmt::format("\"{}\" is none of {}{}", text, listed(words), did_you_mean(text, words));
  });
  return *this;
}
Option& Option::take_all() {
  option_->take_all();
  return *this;
}
Option& Option::one_at_a_time() {
  option_->allow_extra_args(false);
  return *this;
}
Option& Option::delimiter(char between) {
  option_->delimiter(between);
  return *this;
}
Option& Option::excludes(const Option& other) {
  option_->excludes(other.option_);
  return *this;
}
bool Option::given() const { return option_->count() > 0; }

Command& Command::add_subcommand(const std::string& name, const std::string& about) {
  return *below_.emplace_back(std::make_unique<Command>(*app_.add_subcommand(name, about)));
}

template <typename T>
Option Command::add_option(const std::string& names, T& value, const std::string& meaning) {
  CLI::Option* option = app_.add_option(names, value, meaning);
  if constexpr (std::is_arithmetic_v<T>) option->capture_default_str();
  if constexpr (std::is_same_v<T, std::string>) {
    if (!value.empty()) option->capture_default_str();
  }
  return Option(*option);
}
template Option Command::add_option(const std::string&, std::string&, const std::string&);
template Option Command::add_option(const std::string&, int&, const std::string&);
template Option Command::add_option(const std::string&, std::int64_t&, const std::string&);
template Option Command::add_option(const std::string&, std::uint64_t&, const std::string&);
template Option Command::add_option(const std::string&, double&, const std::string&);
template Option Command::add_option(const std::string&, std::optional<std::string>&, const std::string&);
template Option Command::add_option(const std::string&, std::optional<int>&, const std::string&);
template Option Command::add_option(const std::string&, std::optional<std::int64_t>&, const std::string&);
template Option Command::add_option(const std::string&, std::optional<double>&, const std::string&);
template Option Command::add_option(const std::string&, std::vector<std::string>&, const std::string&);
template Option Command::add_option(const std::string&, std::vector<int>&, const std::string&);
template Option Command::add_option(const std::string&, std::vector<double>&, const std::string&);
template Option Command::add_option(const std::string&, std::vector<std::int64_t>&, const std::string&);
template Option Command::add_option(const std::string&, std::filesystem::path&, const std::string&);

Option Command::add_option_with(const std::string& names, std::function<void(const std::string&)> take,
                                const std::string& meaning) {
  return Option(*app_.add_option_function<std::string>(names, take, meaning));
}
Option Command::add_flag(const std::string& names, bool& value, const std::string& meaning) {
  return Option(*app_.add_flag(names, value, meaning));
}
Option Command::get_option(const std::string& name) { return Option(*app_.get_option(name)); }
void Command::footer(std::string_view text) { app_.footer(std::string(text)); }
void Command::require_subcommand(int least, int most) {
  app_.require_subcommand(static_cast<std::size_t>(least), static_cast<std::size_t>(most));
}
void Command::callback(std::function<void()> then) { app_.callback(std::move(then)); }
bool Command::has_chosen_subcommand() const { return !app_.get_subcommands().empty(); }
std::vector<CommandDoc> Command::docs() const {
  std::vector<CommandDoc> docs;
  add_command_docs(app_, "", docs);
  return docs;
}

}  // namespace trireme::cli

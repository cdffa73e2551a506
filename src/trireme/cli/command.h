// cli/command.h -- a command of the program and what can be given to it.
//
// CLI11 does the parsing. It is all headers, and a file that sees them compiles for tens of seconds under the
// sanitizers: only command.cpp and program.cpp do. Options of a type that no other has are added to the list in
// command.cpp.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace trireme::cli {

/// A handle; the option itself lives as long as its command.
class Option {
 public:
  explicit Option(CLI::Option& option) : option_(&option) {}

  /// What stands for the value in the help: "FILE".
  Option& type_name(const std::string& name);
  Option& required(bool is = true);
  /// The help says the value it has now; numbers and texts that are not empty do so by themselves.
  Option& show_default();
  /// The help says this instead.
  Option& show_default(const std::string& text);
  Option& positive();
  Option& not_negative();
  Option& within(double least, double most);
  Option& one_of(const std::vector<std::string>& words);
  /// Given several times, all values count.
  Option& take_all();
  /// One value each time it is given, where the type would take several.
  Option& one_at_a_time();
  Option& delimiter(char between);
  Option& excludes(const Option& other);

  bool given() const;

 private:
  CLI::Option* option_;
};

/// What --help says of one option, as data.
struct OptionDoc {
  std::string names;    // "-q,--quiet", or "FILE" where a place on the command line is meant
  std::string value;    // "INT"; empty for flags and places
  std::string meaning;  // the help text, with the default
};
/// What --help says of one command.
struct CommandDoc {
  std::string name;  // "trireme recipe show"
  std::string about, footer;
  std::vector<OptionDoc> options;
};

/// What --help says of an option: its meaning, and its default where it has one.
std::string help_text(const CLI::Option& option);

class Command {
 public:
  /// The program itself; `app` outlives it.
  explicit Command(CLI::App& app) : app_(app) {}

  /// Lives as long as this one.
  Command& add_subcommand(const std::string& name, const std::string& about);
  /// `value` keeps what it has when the option is not given, and outlives the parsing.
  template <typename T>
  Option add_option(const std::string& names, T& value, const std::string& meaning = "");
  /// `take` is called with the value, when one is given.
  Option add_option_with(const std::string& names, std::function<void(const std::string&)> take,
                         const std::string& meaning = "");
  Option add_flag(const std::string& names, bool& value, const std::string& meaning = "");
  Option get_option(const std::string& name);

  /// Below the options in the help; commands made after it would repeat it.
  void footer(std::string_view text);
  /// At least and at most so many words name a command below this one.
  void require_subcommand(int least, int most);
  void require_subcommand(int number) { require_subcommand(number, number); }
  /// Called when this command was named and its options are read.
  void callback(std::function<void()> then);
  bool has_chosen_subcommand() const;
  /// This command and all below it, in the order of --help.
  std::vector<CommandDoc> docs() const;

 private:
  CLI::App& app_;
  std::vector<std::unique_ptr<Command>> below_;
};

/// An option that takes one of a few words. Help lists them, "fp32|bf16", in their order by name; another word is an
/// error that lists them too. `value` is a T or an optional one.
template <typename T, typename Value>
Option add_choice(Command& command, const std::string& option, Value& value, const std::map<std::string, T>& words,
                  const std::string& meaning) {
  std::vector<std::string> names;
  std::string shown;
  for (const auto& [name, meant] : words) {
    names.push_back(name);
    shown += (shown.empty() ? "" : "|") + name;
  }
  const auto take = [&value, words](const std::string& word) { value = words.at(word); };
  Option added = command.add_option_with(option, take, meaning).one_of(names).type_name(shown);
  if constexpr (std::is_same_v<T, Value>) {
    for (const auto& [name, meant] : words) {
      if (meant == value) added.show_default(name);
    }
  }
  return added;
}

}  // namespace trireme::cli

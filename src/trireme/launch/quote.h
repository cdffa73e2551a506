// launch/quote.h -- words as texts that other programs read back as the same words: sh, sbatch, YAML.
//
// Names of runs, paths and values of --set come from users; what a launcher writes is run by shells on other machines.
// tests/launch/quote_test.cpp gives random words to a real sh and compares what came out.
// Depends on: base.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace trireme::launch {

/// One word of sh: as it is where that is safe, else in single quotes. Throws ConfigError for a NUL, which no argument
/// of a program can hold.
std::string sh_word(std::string_view word);
/// A simple command: its first word is never taken for an assignment or a keyword.
std::string sh_line(std::span<const std::string> words);

/// The value of an option on an #SBATCH line. Throws ConfigError for a line break, which no such line can hold.
std::string sbatch_value(std::string_view value);

/// A double-quoted scalar. Throws ConfigError where the text is not UTF-8.
std::string yaml_text(std::string_view text);

/// Lower-case letters, digits and '-', as DNS labels and Kubernetes want them, at most `longest`; "run" when nothing is
/// left.
std::string dns_label(std::string_view text, std::size_t longest);

}  // namespace trireme::launch

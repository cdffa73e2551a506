// formats/libsvm.h -- sparse samples as text, one a line: "LABEL INDEX:VALUE INDEX:VALUE ..." (LIBSVM's format).
//
// Indices begin with 1 and rise within a line; '#' begins a comment. Labels are any two numbers: the larger is +1.
// Depends on: base.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::formats {

/// Rows in compressed form.
struct SparseSamples {
  std::vector<double> labels;           ///< -1 or +1
  std::vector<std::size_t> rows{0};     ///< row i is entries rows[i] to rows[i + 1]
  std::vector<std::uint32_t> features;  ///< from 0
  std::vector<double> values;
  std::uint64_t feature_count = 0;

  std::size_t count() const { return labels.size(); }
};

/// IoError with file and line where the text is not in the format.
SparseSamples parse_libsvm(std::string_view text, const std::string& name);
SparseSamples read_libsvm(const std::filesystem::path& file);
std::string libsvm_text(const SparseSamples& samples);

}  // namespace trireme::formats

// cli/training_images.h -- labelled images out of text files: scikit-learn's digits, say.
//
// One image a line: its pixels and its class, separated by commas; or a symbol 0-9 a-z for each pixel, a blank and the
// class, as tests/fixtures/digits.txt has them. Images are square. .gz and .zst are unpacked, "#" begins a comment.
// Depends on: data, spmd/commands.h.
#pragma once

#include <string>

#include "trireme/spmd/commands.h"

namespace trireme::cli {

struct LabelledImages {
  spmd::ImageSet train, test;  ///< test: every fifth
};

/// Pixels are divided by the largest of the file. ConfigError with the file and the line.
LabelledImages read_images(const std::string& path);

}  // namespace trireme::cli

#include "trireme/checkpoint/salvage.h"

#include <fmt/format.h>

#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::checkpoint {
namespace {

struct Salvage {
  std::size_t tensors = 0, whole = 0;
  bool weights = true;  ///< all of them
};

/// Nothing: it cannot be opened, so that no command of ours reads any of it.
std::optional<Salvage> salvage_of(const std::filesystem::path& path) {
  try {
    const formats::CheckpointFolder checkpoint(path);
    Salvage found;
    for (const auto& [name, tensor] : checkpoint.manifest().tensors) {
      ++found.tensors;
      try {
        (void)checkpoint.read(name);
        ++found.whole;
      } catch (const IoError&) {
        if (name.starts_with("param/")) found.weights = false;
      }
    }
    return found;
  } catch (const IoError&) {
    return std::nullopt;
  }
}

}  // namespace

std::string salvage_text(std::span<const formats::DamagedCheckpoint> damaged) {
  std::string text;
  for (const auto& [path, why] : damaged) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "\n", path.string(), why);
    const auto found = salvage_of(path);
    if (!found) {
      text += "; none of it can be read";
    } else if (found->weights) {
      text += fmt::format("; {} of {} are whole, the weights among them: `trireme convert {} FOLDER` saves them",
                          found->whole, counted(found->tensors, "tensor"), path.string());
    } else {
      text +=
          fmt::format("; {} of {} are whole, some weights are not", found->whole, counted(found->tensors, "tensor"));
    }
  }
  return text;
}

}  // namespace trireme::checkpoint

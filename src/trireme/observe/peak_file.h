// observe/peak_file.h -- how fast this machine multiplies matrices, measured and kept: what MFU is a fraction of.
//
// `trireme doctor` measures and writes it, to peak.json in the cache folder; the trainer reads it. A figure holds for
// the processor and number of threads it was measured with; for others there is none, and MFU is "not known". Whatever
// disturbs a measurement makes it lower, so the last few are kept, each with when and how it was made, and the best of
// them is the peak.
// Depends on: base, machine.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::observe {

/// peak.json in the cache folder.
std::filesystem::path peak_path();

struct Peak {
  double flops = 0;  ///< floating-point operations a second of one process
  std::string how;   ///< "trireme doctor"
  std::string when;  ///< "2026-03-01 12:00:00 UTC"; empty where nobody wrote it down
};

/// For `precision`, "fp32" or "bf16", with so many threads. Nothing when it was never measured on this processor with
/// so many threads. A file that cannot be read is a warning and nothing.
std::optional<Peak> find_peak(std::string_view precision, int threads, const std::filesystem::path& path = peak_path());

/// Keeps a measurement, made now, beside the others of this processor; those of another are dropped, and so is the
/// oldest when there are many. IoError when it cannot be written.
void keep_peak(std::string_view precision, int threads, double flops, std::string_view how,
               const std::filesystem::path& path = peak_path());

}  // namespace trireme::observe

// observe/peak_file.h -- how fast this machine multiplies matrices, measured once and kept: what MFU is a fraction of.
//
// `trireme doctor` measures and writes it, to peak.json in the cache folder; the trainer reads it. A figure holds for
// the processor and number of threads it was measured with; for others there is none, and MFU is "not known".
// Depends on: base, machine.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

namespace trireme::observe {

/// peak.json in the cache folder.
std::filesystem::path peak_path();

/// Floating-point operations a second of one process with so many threads; `precision` is "fp32" or "bf16". Nothing
/// when it was never measured on this processor with so many threads. A file that cannot be read is a warning and
/// nothing.
std::optional<double> peak_flops(std::string_view precision, int threads,
                                 const std::filesystem::path& path = peak_path());

/// Keeps it beside the others of this processor; those of another are dropped. IoError when it cannot be written.
void keep_peak_flops(std::string_view precision, int threads, double flops,
                     const std::filesystem::path& path = peak_path());

}  // namespace trireme::observe

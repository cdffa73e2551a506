#include "trireme/observe/mfu.h"

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/log.h"

namespace trireme::observe {

Mfu::Mfu(MfuRun run, std::filesystem::path file)
    : run_(std::move(run)),
      file_(std::move(file)),
      peak_(find_peak(run_.precision, run_.threads * run_.local_ranks, file_)),
      kept_flops_(peak_ ? peak_->flops : 0) {}

std::optional<double> Mfu::of(double flops, double seconds) {
  if (!peak_) return std::nullopt;
  const double rate = flops / seconds * run_.local_ranks / run_.ranks;
  if (!std::isfinite(rate)) return std::nullopt;
  if (rate > peak_->flops && !stated_) raise(rate);
  return rate / peak_->flops;
}

void Mfu::raise(double flops) {
  if (!std::exchange(warned_, true)) {
    log_warn(
        "a step computes {:.0f} GFLOP/s, but the peak of this machine was taken to be {:.0f} ({}{}{}): MFU goes by the "
        "step from now on; `trireme doctor --threads {}` on a quiet machine measures the peak anew",
        flops / 1e9, peak_->flops / 1e9, peak_->how, peak_->when.empty() ? "" : ", ", peak_->when,
        run_.threads * run_.local_ranks);
  }
  peak_ = {.flops = flops, .how = "a step of a run", .when = {}};
  if (flops < 1.01 * kept_flops_) return;  // steps that creep up would write the file again and again
  kept_flops_ = flops;
  try {
    keep_peak(run_.precision, run_.threads * run_.local_ranks, flops, peak_->how, file_);
  } catch (const IoError& error) {
    log_warn("the machine's higher peak could not be stored: {}", error.message());
  }
}

}  // namespace trireme::observe

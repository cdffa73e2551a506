#include "trireme/nn/fp8.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/device/stream.h"
#include "trireme/kernels/fp8.h"
#include "trireme/nn/state.h"

namespace trireme::nn {

std::vector<std::string> Fp8History::names_of(const Params& params) {
  std::vector<std::string> names;
  for (const Param& param : params) {
    if (param.gemm == spec::GemmPrecision::kFp8Delayed) names.push_back(param.name);
  }
  return names;
}

Fp8History::Fp8History(Params& params, std::int64_t length, std::int64_t margin, at::Device device)
    : Fp8History(params, names_of(params), length, margin, device) {}

Fp8History::Fp8History(Params& params, std::vector<std::string> names, std::int64_t length, std::int64_t margin,
                       at::Device device)
    : names_(std::move(names)), length_(length), margin_(margin) {
  const auto tensors = static_cast<std::int64_t>(names_.size()) * kRows;
  at::Tensor table = at::zeros({tensors, 3 + length}, at::kFloat);
  for (std::int64_t tensor = 0; tensor < tensors; ++tensor) {
    float* row = table.mutable_data_ptr<float>() + tensor * (3 + length);
    row[1] = 1;
    // Gradients have the format with more range.
    row[2] = tensor % kRows == kGradient ? 57344 : 448;
  }
  table_ = table.to(device);
  for (const std::string& name : names_of(params)) {
    const auto row = std::ranges::find(names_, name);
    TRIREME_CHECK(row != names_.end(), "no rank was told of the scales of {}", name);
    Param* param = here_.emplace_back(&params.at(name));
    param->scales = table_.narrow(0, (row - names_.begin()) * kRows, kRows);
  }
  set_known(known());
}

void Fp8History::set_known(bool known) {
  for (Param* param : here_) param->scales_known = known;
}

void Fp8History::share(const Agree& agree) {
  if (empty()) return;
  // No number of the table is negative, and ranks with the same matrix have the same ones.
  at::Tensor mine = at::zeros_like(table_);
  for (const Param* param : here_) {
    const std::int64_t row = param->scales.storage_offset() / table_.size(1);
    mine.narrow(0, row, kRows).copy_(param->scales);
  }
  agree(mine);
  table_.copy_(mine);
}

void Fp8History::advance(const Agree& agree) {
  if (agree && !empty()) {
    at::Tensor column = table_.select(1, 0);
    at::Tensor largest = column.contiguous();
    agree(largest);
    column.copy_(largest);
  }
  kernels::fp8_advance(table_, steps_ % length_, margin_);
  ++steps_;
  set_known(known());
}

void Fp8History::add_state(State& state) {
  state.add_value(
      "fp8/scales",
      [this] {
        const at::Tensor here = table_.cpu();
        nlohmann::ordered_json rows = nlohmann::ordered_json::object();
        for (std::size_t i = 0; i < names_.size(); ++i) {
          const float* first = here.const_data_ptr<float>() + static_cast<std::int64_t>(i) * kRows * here.size(1);
          rows[names_[i]] = std::vector<float>(first, first + kRows * here.size(1));
        }
        return nlohmann::ordered_json{{"steps", steps_}, {"history", length_}, {"rows", rows}};
      },
      [this](const nlohmann::ordered_json& value) {
        const auto length = value.at("history").get<std::int64_t>();
        if (length != length_) {
          throw ConfigError(
              fmt::format("the checkpoint has scales of {} steps, but precision.fp8_history is {}", length, length_),
              fmt::format("set precision.fp8_history = {}", length));
        }
        const at::Tensor here = table_.cpu();
        for (std::size_t i = 0; i < names_.size(); ++i) {
          const auto rows = value.at("rows").at(names_[i]).get<std::vector<float>>();
          TRIREME_CHECK(static_cast<std::int64_t>(rows.size()) == kRows * here.size(1), "{} numbers of scales",
                        rows.size());
          std::copy(rows.begin(), rows.end(),
                    here.mutable_data_ptr<float>() + static_cast<std::int64_t>(i) * kRows * here.size(1));
        }
        if (!here.is_same(table_)) table_.copy_(here);
        steps_ = value.at("steps").get<std::int64_t>();
        set_known(known());
      });
}

using kernels::Fp8Pair;
using spec::GemmPrecision;

bool in_fp8(const Param& weight, std::int64_t rows) {
  if (weight.gemm == GemmPrecision::kSame) return false;
  const std::int64_t grain = weight.gemm == GemmPrecision::kFp8Blocks ? 128 : 16;
  if (rows % grain != 0) {
    throw ConfigError(fmt::format("FP8 GEMMs with {} take multiples of {} tokens, not {}", weight.name, grain, rows),
                      fmt::format("make data.seq_len a multiple of {}, or set precision.gemm = \"same\"", grain));
  }
  return true;
}

namespace {

/// Gradients have the format with more range where one scale serves a whole tensor; small blocks do not need it.
kernels::Fp8Format format_of(const Param& weight, Fp8Role role) {
  const bool wide = role == Fp8Role::kGradient && weight.gemm != GemmPrecision::kFp8Blocks;
  return wide ? kernels::Fp8Format::kE5m2 : kernels::Fp8Format::kE4m3;
}

kernels::Fp8DelayedScale delayed_scale(const Param& weight, const Fp8Quantise& how) {
  TRIREME_CHECK(weight.scales.defined(), "{} has no delayed scales", weight.name);
  const at::Tensor row = weight.scales.select(0, static_cast<std::int64_t>(how.role));
  return {.scale = row.narrow(0, 1, 1),
          .amax = how.note ? row.narrow(0, 0, 1) : at::Tensor(),
          .known = weight.scales_known};
}

}  // namespace

Fp8Pair quantise(const Param& weight, const at::Tensor& x, const Fp8Quantise& how, const Fp8Pair* into) {
  const bool blocks = weight.gemm == GemmPrecision::kFp8Blocks;
  const auto format = format_of(weight, how.role);
  const auto scaling = !blocks                        ? kernels::Fp8Scaling::kTensor
                       : how.role == Fp8Role::kWeight ? kernels::Fp8Scaling::kBlocks128x128
                                                      : kernels::Fp8Scaling::kBlocks1x128;
  if (weight.gemm != GemmPrecision::kFp8Delayed) {
    return kernels::to_fp8(x, format, scaling, how.rows, how.columns, nullptr, into);
  }
  const kernels::Fp8DelayedScale delayed = delayed_scale(weight, how);
  return kernels::to_fp8(x, format, scaling, how.rows, how.columns, &delayed, into);
}

bool quantises_gated(const Param& weight) { return weight.gemm == GemmPrecision::kFp8Delayed && weight.scales_known; }

Fp8Pair quantise_gated(const Param& weight, const at::Tensor& gate, const at::Tensor& up, kernels::Activation kind,
                       const Fp8Quantise& how) {
  return kernels::gated_to_fp8(gate, up, kind, format_of(weight, how.role), how.rows, how.columns,
                               delayed_scale(weight, how));
}

kernels::Fp8GatedBackward quantise_gated_backward(const Param& in, const Param& out, const at::Tensor& dy,
                                                  const at::Tensor& gate, const at::Tensor& up,
                                                  kernels::Activation kind) {
  return kernels::gated_backward_to_fp8(dy, gate, up, kind, delayed_scale(in, {.role = Fp8Role::kGradient}),
                                        delayed_scale(out, {.role = Fp8Role::kActivation}));
}

const Fp8Pair& Fp8WeightCache::get(const Param& weight, const at::Tensor& value, const Use& use) {
  const bool stale = !use.current || version_ != weight.version;
  if (stale || (use.forward && value.is_cuda() && device::cuda_capturing())) {
    pair_ = quantise(weight, value, {.role = Fp8Role::kWeight, .rows = true, .columns = true, .note = use.training},
                     &pair_);
    version_ = use.current ? weight.version : -1;
  }
  return pair_;
}

}  // namespace trireme::nn

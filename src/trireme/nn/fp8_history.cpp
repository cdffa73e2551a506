#include "trireme/nn/fp8_history.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/kernels/fp8.h"
#include "trireme/nn/state.h"

namespace trireme::nn {

Fp8History::Fp8History(Params& params, std::int64_t length, std::int64_t margin, at::Device device)
    : length_(length), margin_(margin) {
  for (Param& param : params) {
    if (param.gemm == spec::GemmPrecision::kFp8Delayed) followed_.push_back(&param);
  }
  const auto tensors = static_cast<std::int64_t>(followed_.size()) * kRows;
  at::Tensor table = at::zeros({tensors, 3 + length}, at::kFloat);
  for (std::int64_t tensor = 0; tensor < tensors; ++tensor) {
    float* row = table.mutable_data_ptr<float>() + tensor * (3 + length);
    row[1] = 1;
    // Gradients have the format with more range.
    row[2] = tensor % kRows == kGradient ? 57344 : 448;
  }
  table_ = table.to(device);
  for (std::size_t i = 0; i < followed_.size(); ++i) {
    followed_[i]->scales = table_.narrow(0, static_cast<std::int64_t>(i) * kRows, kRows);
  }
  tell();
}

void Fp8History::tell() {
  for (Param* param : followed_) param->scales_known = steps_ > 0;
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
  tell();
}

void Fp8History::add_state(State& state) {
  state.add_value(
      "fp8/scales",
      [this] {
        const at::Tensor here = table_.cpu();
        nlohmann::ordered_json rows = nlohmann::ordered_json::object();
        for (std::size_t i = 0; i < followed_.size(); ++i) {
          const float* first = here.const_data_ptr<float>() + static_cast<std::int64_t>(i) * kRows * here.size(1);
          rows[followed_[i]->name] = std::vector<float>(first, first + kRows * here.size(1));
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
        for (std::size_t i = 0; i < followed_.size(); ++i) {
          const auto rows = value.at("rows").at(followed_[i]->name).get<std::vector<float>>();
          TRIREME_CHECK(static_cast<std::int64_t>(rows.size()) == kRows * here.size(1), "{} numbers of scales",
                        rows.size());
          std::copy(rows.begin(), rows.end(),
                    here.mutable_data_ptr<float>() + static_cast<std::int64_t>(i) * kRows * here.size(1));
        }
        if (!here.is_same(table_)) table_.copy_(here);
        steps_ = value.at("steps").get<std::int64_t>();
        tell();
      });
}

}  // namespace trireme::nn

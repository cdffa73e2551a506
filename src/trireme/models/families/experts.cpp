// Experts in published folders: keys of the configuration that families share, and both ways in which tensors lie.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "trireme/models/families/families.h"

namespace trireme::models {

void TensorList::add_experts(const PublishedExperts& names, const std::string& ours, bool fused) {
  const spec::ModelShape& shape = model_.shape;
  const std::int64_t ffn = spec::expert_ffn_size(shape), hidden = shape.hidden_size, count = shape.experts.num_experts;
  nn::Param &in = model_.params.at(ours + ".experts.in.weight"), &out = model_.params.at(ours + ".experts.out.weight");
  if (fused) {
    const auto whole = [&](const char* name, nn::Param& param) {
      tensors_.push_back({.name = fmt::format("{}.{}", names.fused, name),
                          .param = &param,
                          .rows = param.placement.shape[0] * param.placement.shape[1],
                          .shape = param.placement.shape});
    };
    whole("gate_up_proj", in);
    whole("down_proj", out);
    return;
  }
  for (std::int64_t expert = 0; expert < count; ++expert) {
    const auto add = [&](const std::string& name, nn::Param& param, std::int64_t first, std::int64_t rows) {
      tensors_.push_back({.name = fmt::format("{}.{}{}.{}.weight", names.each, names.before_number, expert, name),
                          .param = &param,
                          .first_row = first,
                          .rows = rows,
                          .shape = {rows, param.placement.shape[2]}});
    };
    if (shape.gated) {
      add(names.gate, in, expert * 2 * ffn, ffn);
      add(names.up, in, expert * 2 * ffn + ffn, ffn);
    } else {
      add(names.up, in, expert * ffn, ffn);
    }
    add(names.down, out, expert * hidden, hidden);
  }
}

void TensorList::add_shared(const std::string& theirs, const std::string& ours) {
  const std::int64_t ffn = spec::shared_ffn_size(model_.shape);
  if (ffn == 0) return;
  add_rows(theirs + ".gate_proj.weight", ours + ".shared.in.weight", 0, ffn);
  add_rows(theirs + ".up_proj.weight", ours + ".shared.in.weight", ffn, ffn);
  add(theirs + ".down_proj.weight", ours + ".shared.out.weight");
}

void read_aux_loss(const formats::HfConfig& config, spec::ModelShape& shape) {
  // The reference adds the loss where it is asked for the router's logits, and does not divide by top_k.
  if (!config.get_or<bool>("output_router_logits", false)) return;
  shape.experts.aux_loss_weight =
      static_cast<double>(shape.experts.top_k) * config.get_or<double>("router_aux_loss_coef", 0.001);
}

void write_aux_loss(const spec::ModelShape& shape, formats::HfConfig& config) {
  config.set("output_router_logits", shape.experts.aux_loss_weight > 0);
  config.set("router_aux_loss_coef", shape.experts.aux_loss_weight / static_cast<double>(shape.experts.top_k));
}

void read_sparse_layers(const formats::HfConfig& config, spec::ModelShape& shape) {
  spec::Experts& experts = shape.experts;
  experts.every = config.get_or<std::int64_t>("decoder_sparse_step", 1);
  const auto dense = config.get_or<std::vector<std::int64_t>>("mlp_only_layers", {});
  experts.first_dense_layers = static_cast<std::int64_t>(dense.size());
  for (std::size_t i = 0; i < dense.size(); ++i) {
    if (dense[i] != static_cast<std::int64_t>(i))
      unsupported(config, "mlp_only_layers", fmt::format("layer {}", dense[i]), "dense layers below all MoE layers");
  }
  if (experts.every < 1 || experts.first_dense_layers % experts.every != 0)
    unsupported(config, "decoder_sparse_step", fmt::format("{}", experts.every),
                "one layer in so many, which divides the number of mlp_only_layers");
}

void write_sparse_layers(const spec::ModelShape& shape, formats::HfConfig& config) {
  config.set("decoder_sparse_step", shape.experts.every);
  nlohmann::ordered_json dense = nlohmann::ordered_json::array();
  for (std::int64_t i = 0; i < shape.experts.first_dense_layers; ++i) dense.push_back(i);
  config.set("mlp_only_layers", dense);
}

}  // namespace trireme::models

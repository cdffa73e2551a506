#include "trireme/train/diagnose/twin_methods.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/parallel/compress/power_iteration.h"
#include "trireme/parallel/compress/qsgd_code.h"
#include "trireme/parallel/compress/top_k.h"

namespace trireme::train {
namespace {

at::Tensor added_up(const std::vector<at::Tensor>& tensors) {
  at::Tensor sum = tensors.front().clone();
  for (std::size_t i = 1; i < tensors.size(); ++i) sum.add_(tensors[i]);
  return sum;
}

/// Each row as the means of its entries >= 0 and of those below.
at::Tensor two_means(const at::Tensor& c) {
  const at::Tensor up = c.ge(0).to(c.scalar_type()), down = up.neg().add(1);
  const auto mean = [&](const at::Tensor& which) {
    return c.mul(which).sum(1, true).div(which.sum(1, true).clamp_min(1));
  };
  return at::where(c.ge(0), mean(up), mean(down));
}

at::Tensor largest_first(const at::Tensor& flat) {
  return std::get<1>(at::sort(flat.abs(), /*stable=*/true, /*dim=*/0, /*descending=*/true));
}

std::string key_of(const parallel::CompressedPart& part, std::size_t copy) {
  return fmt::format("{}/{}/{}", part.name, part.shard, copy);
}

}  // namespace

at::Tensor& TwinMethods::kept(const std::string& name, const at::Tensor& like) {
  const auto [entry, is_new] = memory_.try_emplace(name);
  if (is_new) entry->second = at::zeros_like(like);
  return entry->second;
}

at::Tensor TwinMethods::sum_dense(const std::string& name, const std::vector<at::Tensor>& copies) {
  if (momentum() == 0) return added_up(copies);
  std::vector<at::Tensor> moved;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    at::Tensor& u = kept(fmt::format("momentum/{}/{}", name, i), copies[i]);
    u.mul_(momentum()).add_(copies[i]);
    moved.push_back(u);
  }
  return added_up(moved);
}

std::vector<at::Tensor> TwinMethods::sum_dense(const std::vector<TwinInput>& inputs) {
  std::vector<at::Tensor> sums;
  for (const TwinInput& input : inputs) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& copy : input.copies) flat.push_back(copy.reshape({-1}));
    sums.push_back(
        sum_dense(fmt::format("{}/{}", input.part.name, input.part.shard), flat).reshape(input.copies.front().sizes()));
  }
  return sums;
}

at::Tensor TwinMethods::onebit_sgd(const TwinInput& input) {
  at::Tensor sum = at::zeros_like(input.copies.front());
  for (std::size_t i = 0; i < input.copies.size(); ++i) {
    at::Tensor& residual = kept("residual/" + key_of(input.part, i), sum);
    const at::Tensor c = input.copies[i].add(residual), said = two_means(c);
    residual = c.sub(said);
    sum.add_(said);
  }
  at::Tensor& residual = kept(fmt::format("owner/{}/{}", input.part.name, input.part.shard), sum);
  const at::Tensor c = sum.add(residual), said = two_means(c);
  residual = c.sub(said);
  return said;
}

at::Tensor TwinMethods::qsgd(const TwinInput& input, std::int64_t step) {
  at::Tensor sum = at::zeros_like(input.copies.front()).view({-1});
  for (std::size_t i = 0; i < input.copies.size(); ++i) {
    const parallel::QsgdDraws random =
        parallel::qsgd_draws(seed_, input.part.name, input.part.shard, step, static_cast<int>(i));
    const at::Tensor v = input.copies[i].to(at::kDouble).reshape({-1});
    at::Tensor said = at::zeros_like(v);
    for (std::int64_t at = 0; at < v.numel(); at += config_.bucket_size) {
      const std::int64_t size = std::min(config_.bucket_size, v.numel() - at);
      const at::Tensor bucket = v.narrow(0, at, size);
      const double norm = config_.norm == spec::QsgdNorm::kMax ? bucket.abs().max().item<double>()
                                                               : at::linalg_vector_norm(bucket).item<double>();
      if (norm == 0) continue;
      for (std::int64_t j = 0; j < size; ++j) {
        const double x = v.const_data_ptr<double>()[at + j], a = std::abs(x) / norm * config_.levels;
        const double draw = random(static_cast<std::uint64_t>(at + j));
        const double level = std::floor(a) + (draw < a - std::floor(a) ? 1 : 0);
        said.mutable_data_ptr<double>()[at + j] = std::copysign(norm * level / config_.levels, x);
      }
    }
    sum.add_(said);
  }
  return sum.view(input.copies.front().sizes());
}

at::Tensor TwinMethods::powersgd(const TwinInput& input, std::int64_t step) {
  const std::int64_t rank = parallel::useful_rank(config_.rank, input.part.rows, input.part.columns);
  if (rank == 0) return added_up(input.copies);
  const auto draw = [&](std::int64_t at) {
    return parallel::random_factor(seed_, input.part.name, input.part.shard, at, input.part.columns, rank,
                                   input.copies.front().scalar_type());
  };
  const std::string name = fmt::format("right/{}/{}", input.part.name, input.part.shard);
  at::Tensor right = !config_.warm_start ? draw(step) : memory_.contains(name) ? memory_.at(name) : draw(0);
  std::vector<at::Tensor> matrices;
  for (std::size_t i = 0; i < input.copies.size(); ++i)
    matrices.push_back(input.copies[i].add(kept("residual/" + key_of(input.part, i), input.copies[i])));
  const at::Tensor all = added_up(matrices);
  const at::Tensor left = std::get<0>(at::linalg_qr(all.matmul(right)));
  for (std::size_t i = 0; i < matrices.size(); ++i)
    memory_["residual/" + key_of(input.part, i)] = matrices[i].sub(left.matmul(left.t().matmul(matrices[i])));
  memory_[name] = all.t().matmul(left);
  return left.matmul(left.t().matmul(all));
}

at::Tensor TwinMethods::powersgd_alternating(const TwinInput& input, std::int64_t step) {
  const std::int64_t rank = parallel::useful_rank(config_.rank, input.part.rows, input.part.columns);
  if (rank == 0) return added_up(input.copies);
  const bool sends_left = (step - config_.start) % 2 == 0;
  const std::string right = fmt::format("right/{}/{}", input.part.name, input.part.shard),
                    left = fmt::format("left/{}/{}", input.part.name, input.part.shard);
  if (!memory_.contains(right)) {
    memory_[right] = parallel::random_factor(seed_, input.part.name, input.part.shard, 0, input.part.columns, rank,
                                             input.copies.front().scalar_type());
  }
  const at::Tensor basis = std::get<0>(at::linalg_qr(memory_.at(sends_left ? right : left)));
  at::Tensor sum = at::zeros_like(input.copies.front()), sent;
  for (std::size_t i = 0; i < input.copies.size(); ++i) {
    at::Tensor& residual = kept("residual/" + key_of(input.part, i), input.copies[i]);
    const at::Tensor m = input.copies[i].add(residual);
    const at::Tensor factor = sends_left ? m.matmul(basis) : m.t().matmul(basis);
    const at::Tensor said = sends_left ? factor.matmul(basis.t()) : basis.matmul(factor.t());
    residual = m.sub(said);
    sum.add_(said);
    sent = sent.defined() ? sent.add(factor) : factor;
  }
  memory_[sends_left ? left : right] = sent;
  return sum;
}

at::Tensor TwinMethods::dgc(const TwinInput& input, std::int64_t step) {
  const std::int64_t elements = input.part.rows * input.part.columns;
  const std::int64_t count = parallel::kept_elements(
      elements, parallel::warmup_sparsity(config_.sparsity, step - config_.start, config_.sparsity_warmup));
  at::Tensor sum = at::zeros_like(input.copies.front()).view({-1});
  for (std::size_t i = 0; i < input.copies.size(); ++i) {
    const at::Tensor g = input.copies[i].reshape({-1});
    at::Tensor& u = kept("momentum/" + key_of(input.part, i), sum);
    at::Tensor& v = kept("residual/" + key_of(input.part, i), sum);
    u = u.mul(momentum()).add(g);
    v = v.add(u);
    const at::Tensor places = largest_first(v).narrow(0, 0, count);
    sum.index_add_(0, places, v.index_select(0, places));
    v.index_fill_(0, places, 0);
    if (config_.masking) u.index_fill_(0, places, 0);
  }
  return sum.view(input.copies.front().sizes());
}

/// The parts of one rank that have the same copies are one pool.
std::vector<at::Tensor> TwinMethods::csc(const std::vector<TwinInput>& inputs) {
  std::map<std::pair<int, int>, std::vector<std::size_t>> pools;
  for (std::size_t i = 0; i < inputs.size(); ++i) pools[{inputs[i].part.copies, inputs[i].part.shard}].push_back(i);
  std::vector<at::Tensor> sums(inputs.size());
  for (const auto& [of, members] : pools) {
    std::vector<at::Tensor> left;  // of each copy
    at::Tensor norms;
    std::int64_t chunks = 0;
    for (std::size_t copy = 0; copy < inputs[members.front()].copies.size(); ++copy) {
      std::vector<at::Tensor> pool;
      for (const std::size_t i : members) {
        const at::Tensor g = inputs[i].copies[copy].reshape({-1});
        at::Tensor& u = kept("momentum/" + key_of(inputs[i].part, copy), g);
        at::Tensor& v = kept("residual/" + key_of(inputs[i].part, copy), g);
        u = u.mul(momentum()).add(g);
        v = v.add(u);
        pool.push_back(v);
      }
      left.push_back(at::cat(pool));
      chunks = (left.back().numel() + config_.chunk - 1) / config_.chunk;
      std::vector<at::Tensor> sizes;
      for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        const std::int64_t begin = chunk * config_.chunk;
        sizes.push_back(left.back().narrow(0, begin, std::min(config_.chunk, left.back().numel() - begin)).abs().sum());
      }
      norms = norms.defined() ? norms.add(at::stack(sizes)) : at::stack(sizes);
    }
    const at::Tensor chosen = largest_first(norms).narrow(0, 0, parallel::kept_elements(chunks, 1 - config_.density));
    at::Tensor mask = at::zeros_like(left.front());
    for (std::int64_t i = 0; i < chosen.numel(); ++i) {
      const std::int64_t begin = chosen[i].item<std::int64_t>() * config_.chunk;
      mask.narrow(0, begin, std::min(config_.chunk, mask.numel() - begin)).fill_(1);
    }
    std::int64_t at = 0;
    for (const std::size_t i : members) {
      const std::int64_t size = inputs[i].copies.front().numel();
      const at::Tensor sent = mask.narrow(0, at, size), stays = sent.neg().add(1);
      at::Tensor sum = at::zeros_like(sent);
      for (std::size_t copy = 0; copy < left.size(); ++copy) {
        sum.add_(left[copy].narrow(0, at, size).mul(sent));
        memory_.at("residual/" + key_of(inputs[i].part, copy)).mul_(stays);
        if (config_.masking) memory_.at("momentum/" + key_of(inputs[i].part, copy)).mul_(stays);
      }
      sums[i] = sum.view(inputs[i].copies.front().sizes());
      at += size;
    }
  }
  return sums;
}

at::Tensor TwinMethods::mean_of_signs(const std::string& key, const std::vector<at::Tensor>& copies,
                                      const at::Tensor& variance) {
  const at::Tensor moves = variance.ne(0).to(variance.scalar_type());
  const auto n = static_cast<std::int64_t>(copies.size());
  // A scale for each owner's share.
  const auto signs = [&](const at::Tensor& c) {
    at::Tensor said = at::zeros_like(c);
    for (std::int64_t owner = 0; owner < n; ++owner) {
      const std::int64_t begin = c.numel() * owner / n, size = c.numel() * (owner + 1) / n - begin;
      const at::Tensor x = c.narrow(0, begin, size), counted = moves.narrow(0, begin, size);
      const double count = counted.sum().item<double>();
      const double scale = count > 0 ? std::sqrt(x.square().sum().item<double>() / count) : 0;
      said.narrow(0, begin, size).copy_(x.ge(0).to(x.scalar_type()).mul(2).sub(1).mul(scale).mul(counted));
    }
    return said;
  };
  at::Tensor mean = at::zeros_like(copies.front());
  for (std::size_t i = 0; i < copies.size(); ++i) {
    at::Tensor& residual = kept(fmt::format("residual/{}/{}", key, i), mean);
    const at::Tensor c = copies[i].add(residual).mul(moves), said = signs(c);
    residual = c.sub(said);
    mean.add_(said, 1.0 / static_cast<double>(n));
  }
  at::Tensor& residual = kept("owner/" + key, mean);
  const at::Tensor c = mean.add(residual).mul(moves), said = signs(c);
  residual = c.sub(said);
  return said;
}

std::vector<at::Tensor> TwinMethods::sum(const std::vector<TwinInput>& inputs, std::int64_t step) {
  if (config_.kind == spec::CompressKind::kCsc) return csc(inputs);
  std::vector<at::Tensor> sums;
  for (const TwinInput& input : inputs) {
    switch (config_.kind) {
      case spec::CompressKind::kOnebitSgd:
        sums.push_back(onebit_sgd(input));
        break;
      case spec::CompressKind::kQsgd:
        sums.push_back(qsgd(input, step));
        break;
      case spec::CompressKind::kPowerSgd:
        sums.push_back(config_.alternate ? powersgd_alternating(input, step) : powersgd(input, step));
        break;
      case spec::CompressKind::kDgc:
        sums.push_back(dgc(input, step));
        break;
      default:
        throw InternalError("this method compresses no gradients");
    }
  }
  return sums;
}

}  // namespace trireme::train

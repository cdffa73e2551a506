#include "trireme/pipeline/versions.h"

#include <ATen/ops/empty_like.h>

#include <utility>

#include "trireme/base/error.h"
#include "trireme/pipeline/waves.h"

namespace trireme::pipeline {

using schedule::Op;

WeightVersions::WeightVersions(std::span<const Chunk> chunks, WeightPredictor* predictor,
                               parallel::DataParallel* data_parallel)
    : predictor_(predictor), data_parallel_(data_parallel) {
  for (const Chunk& chunk : chunks) {
    Held& held = held_[chunk.number];
    held.chunk = &chunk;
    for (std::size_t i = 0; i < chunk.params.size(); ++i) held.index[chunk.params[i]] = i;
  }
}

const at::Tensor& WeightVersions::Held::value(const nn::Param& param) {
  const auto found = index.find(&param);
  TRIREME_CHECK(found != index.end(), "chunk {} computes with {}, which is not among its parameters", chunk->number,
                param.name);
  return (*now)[found->second];
}

WeightVersions::Held& WeightVersions::held(int chunk) {
  const auto found = held_.find(chunk);
  TRIREME_CHECK(found != held_.end(), "chunk {} is not on this rank", chunk);
  return found->second;
}

WeightVersions::Copy WeightVersions::copy_of(Held& held) {
  if (!held.unused.empty()) {
    Copy copy = std::move(held.unused.back());
    held.unused.pop_back();
    return copy;
  }
  Copy copy;
  for (const nn::Param* param : held.chunk->params) copy.push_back(at::empty_like(param->value));
  return copy;
}

/// With ZeRO each rank predicts the part that it updates, and all gather the rest.
void WeightVersions::predict(const Held& held, int updates, Copy& copy) {
  const auto& params = held.chunk->params;
  if (data_parallel_ == nullptr || !data_parallel_->shards()) {
    for (std::size_t i = 0; i < params.size(); ++i) copy[i].copy_(predictor_->after(*params[i], updates));
    return;
  }
  data_parallel_->gather_made(
      held.chunk->number, [&](const nn::Param& owned) { return predictor_->after(owned, updates); },
      [&](const nn::Param& param, const at::Tensor& whole) { copy[held.index.at(&param)].copy_(whole); });
}

void WeightVersions::begin() {
  for (auto& [chunk, held] : held_) {
    TRIREME_CHECK(held.stashed.empty(), "chunk {} still holds version {}", chunk, held.stashed.begin()->first);
    held.next = nullptr;
    for (auto& prediction : held.predicted) {
      if (prediction.version >= 0) held.unused.push_back(std::move(prediction.copy));
      prediction = {};
    }
  }
}

void WeightVersions::execute(const schedule::Instruction& instruction, bool forward, int present) {
  Held& mine = held(instruction.chunk);
  const int version = instruction.micro;
  auto& prediction = mine.predicted[forward ? 1 : 0];
  const auto& params = mine.chunk->params;
  switch (instruction.op) {
    case Op::kStashWeights: {
      TRIREME_CHECK(version == present, "version {} is to be stashed while {} is present", version, present);
      Copy copy = copy_of(mine);
      for (std::size_t i = 0; i < params.size(); ++i) copy[i].copy_(params[i]->value);
      TRIREME_CHECK(mine.stashed.emplace(version, std::move(copy)).second, "version {} is held already", version);
      return;
    }
    case Op::kDropWeights: {
      auto dropped = mine.stashed.extract(version);
      TRIREME_CHECK(!dropped.empty(), "version {} is not held", version);
      mine.unused.push_back(std::move(dropped.mapped()));
      return;
    }
    case Op::kPredictWeights:
      TRIREME_CHECK(predictor_ != nullptr, "there is no weight predictor");
      if (prediction.version < 0) prediction.copy = copy_of(mine);
      prediction.version = version;
      predict(mine, version - present, prediction.copy);
      mine.next = &prediction.copy;
      return;
    case Op::kLoadWeights: {
      if (prediction.version == version) {
        mine.next = &prediction.copy;
        return;
      }
      const auto found = mine.stashed.find(version);
      TRIREME_CHECK(found != mine.stashed.end(), "version {} is not held", version);
      mine.next = &found->second;
      return;
    }
    default:
      TRIREME_CHECK(false, "{} is no version instruction", schedule::to_text(instruction, true));
  }
}

nn::WeightSource* WeightVersions::take(int chunk, int micro, bool keep) {
  if (waves_ != nullptr) return waves_->take(micro);
  Held& mine = held(chunk);
  if (mine.next == nullptr) return nullptr;
  mine.now = keep ? mine.next : std::exchange(mine.next, nullptr);
  return &mine;
}

int WeightVersions::Held::copies() const {
  return static_cast<int>(stashed.size()) + (predicted[0].version >= 0) + (predicted[1].version >= 0);
}

int WeightVersions::copies() const {
  int copies = 0;
  for (const auto& [chunk, held] : held_) copies += held.copies();
  return copies;
}

std::int64_t WeightVersions::bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [chunk, held] : held_) {
    std::int64_t each = 0;
    for (const nn::Param* param : held.chunk->params) each += static_cast<std::int64_t>(param->value.nbytes());
    bytes += held.copies() * each;
  }
  return bytes;
}

}  // namespace trireme::pipeline

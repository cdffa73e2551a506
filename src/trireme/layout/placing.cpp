#include "trireme/layout/placing.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/layout/mesh.h"

namespace trireme::layout {
namespace {

/// floor(k d / n) without the product, which could overflow.
Index share_begin(Index d, Index k, Index n) { return d / n * k + d % n * k / n; }

Index round_up(Index value, Index multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

Placing::Placing(const Mesh& mesh, int rank, std::string name, Shape shape) : mesh_(mesh), rank_(rank) {
  with_context("while placing " + name, [&] { return elements(shape); });
  TRIREME_CHECK(rank >= 0 && rank < mesh.ranks(), "rank {} of a mesh of {} ranks", rank, mesh.ranks());
  Box whole{.begin = std::vector<Index>(shape.size(), 0), .end = shape};
  placement_ = {.name = std::move(name), .shape = std::move(shape), .pieces = {}, .partition = {}};
  placement_.pieces.push_back({.box = std::move(whole), .padding = 0, .replica_axes = mesh.wide_axes()});
}

void Placing::refuse(const std::string& why, const std::string& hint) const {
  throw ConfigError(fmt::format("{} ({}): {}", placement_.name, fmt::join(placement_.shape, " x "), why), hint);
}

void Placing::check_open(std::size_t dimension) const {
  if (dimension >= placement_.shape.size()) {
    refuse(fmt::format("there is no dimension {} to split", dimension),
           placement_.shape.empty() ? std::string("leave a scalar whole")
                                    : fmt::format("split dimension {}", placement_.shape.size() - 1));
  }
  if (padded_ || placement_.partition) {
    refuse(fmt::format("dimension {} is split after {}", dimension, padded_ ? "padding" : "partitioning"),
           fmt::format("split first, then {}", padded_ ? "pad" : "partition"));
  }
}

AxisNames Placing::use(const AxisNames& axes, const std::string& used) const {
  return with_context("while placing " + placement_.name, [&] { return without(mesh_, axes, used); });
}

Placing& Placing::split(std::size_t dimension, const std::string& axis) {
  check_open(dimension);
  const Index ranks = mesh_.size(axis), index = mesh_.coordinate(rank_, axis);
  for (Piece& piece : placement_.pieces) {
    piece.replica_axes = use(piece.replica_axes, axis);
    Index &begin = piece.box.begin[dimension], &end = piece.box.end[dimension];
    const Index size = end - begin, first = begin;
    begin = first + share_begin(size, index, ranks);
    end = first + share_begin(size, index + 1, ranks);
  }
  return *this;
}

Placing& Placing::split_blocks(std::size_t dimension, const std::string& axis, std::span<const Block> blocks) {
  check_open(dimension);
  const Index ranks = mesh_.size(axis), index = mesh_.coordinate(rank_, axis), rows = placement_.shape[dimension];
  Index sum = 0;
  for (const Block& block : blocks) sum += block.size;
  if (sum != rows) {
    refuse(fmt::format("the blocks have {} rows together, dimension {} has {}", sum, dimension, rows),
           blocks.empty() ? fmt::format("give one block of {}", rows)
                          : fmt::format("make the last block {} rows", blocks.back().size + rows - sum));
  }
  std::vector<Piece> pieces;
  for (const Piece& piece : placement_.pieces) {
    if (piece.box.begin[dimension] != 0 || piece.box.end[dimension] != rows) {
      refuse(fmt::format("dimension {} is split into blocks after it was split already", dimension),
             "split into blocks first");
    }
    Index offset = 0;
    for (const Block& block : blocks) {
      const Index units = block.units == 0 ? block.size : block.units;
      if (units < 0 || block.size < 0 || (units > 0 && block.size % units != 0)) {
        refuse(fmt::format("a block of {} rows is not made of {} equal units", block.size, units),
               fmt::format("use {} units", std::max<Index>(block.size, 0)));
      }
      const bool copied = block.units > 0 && units < ranks;
      if (copied && ranks % units != 0) {
        refuse(
            fmt::format("{} units are fewer than the {} ranks of axis {} and do not divide them", units, ranks, axis),
            fmt::format("use {} = {}", axis, units));
      }
      Piece part = piece;
      // Copies of one unit lie on neighbours: they are the inner part of the axis.
      part.replica_axes = use(piece.replica_axes, axis);
      if (copied) {
        part.replica_axes =
            units == 1 ? piece.replica_axes : use(piece.replica_axes, fmt::format("{}/{}", axis, ranks / units));
      }
      const Index rows_each = units == 0 ? 0 : block.size / units;
      const Index first = copied ? index / (ranks / units) : share_begin(units, index, ranks);
      const Index last = copied ? first + 1 : share_begin(units, index + 1, ranks);
      part.box.begin[dimension] = offset + first * rows_each;
      part.box.end[dimension] = offset + last * rows_each;
      pieces.push_back(std::move(part));
      offset += block.size;
    }
  }
  placement_.pieces = std::move(pieces);
  return *this;
}

Placing& Placing::split_padded(const std::string& axis, Index rows) {
  check_open(0);
  const Index ranks = mesh_.size(axis), index = mesh_.coordinate(rank_, axis), real = placement_.shape[0];
  if (rows < real || rows % ranks != 0) {
    refuse(fmt::format("{} rows padded to {} cannot be split evenly over the {} ranks of axis {}", real, rows, ranks,
                       axis),
           fmt::format("pad to {}", round_up(std::max(rows, real), ranks)));
  }
  const Index each = rows / ranks;
  for (Piece& piece : placement_.pieces) {
    if (piece.box.begin[0] != 0 || piece.box.end[0] != real) {
      refuse("dimension 0 is padded after it was split already", "split dimension 0 only once");
    }
    piece.replica_axes = use(piece.replica_axes, axis);
    piece.box.end[0] = 1;
    const Index row = piece.box.elements();
    piece.box.begin[0] = std::min(index * each, real);
    piece.box.end[0] = std::min((index + 1) * each, real);
    piece.padding = each * row - piece.box.elements();
  }
  padded_ = true;
  return *this;
}

Placing& Placing::only_at(const std::string& axis, int coordinate) {
  if (coordinate < 0 || coordinate >= mesh_.size(axis)) {
    refuse(fmt::format("axis {} has no coordinate {}; its size is {}", axis, coordinate, mesh_.size(axis)),
           fmt::format("use {}", mesh_.size(axis) - 1));
  }
  for (Piece& piece : placement_.pieces) piece.replica_axes = use(piece.replica_axes, axis);
  if (mesh_.size(axis) > 1) placement_.absent_axes.push_back(axis);
  if (mesh_.coordinate(rank_, axis) != coordinate) placement_.pieces.clear();
  return *this;
}

Placing& Placing::partition(const AxisNames& axes, Index multiple) {
  if (placement_.partition) refuse("it is partitioned twice", "name all axes in one partition");
  if (multiple < 1) refuse(fmt::format("parts cannot be multiples of {} elements", multiple), "use 1");
  for (Piece& piece : placement_.pieces) {
    for (const std::string& axis : axes) piece.replica_axes = use(piece.replica_axes, axis);
  }
  const Index parts = mesh_.group_size(axes), index = mesh_.index_in_group(rank_, axes);
  const Index each = round_up((unpartitioned_elements(placement_) + parts - 1) / parts, multiple);
  placement_.partition = {.begin = index * each, .end = (index + 1) * each, .axes = axes};
  return *this;
}

Placement stack_copies(const Mesh& mesh, int rank, Placement placement, const AxisNames& axes) {
  TRIREME_CHECK(!placement.partition, "{} is partitioned: its parts are no copies", placement.name);
  const Index copy = mesh.index_in_group(rank, axes);
  placement.shape.insert(placement.shape.begin(), mesh.group_size(axes));
  for (Piece& piece : placement.pieces) {
    piece.box.begin.insert(piece.box.begin.begin(), copy);
    piece.box.end.insert(piece.box.end.begin(), copy + 1);
    for (const std::string& axis : axes) piece.replica_axes = without(mesh, piece.replica_axes, axis);
  }
  return placement;
}

std::vector<Placement> place_all(const Mesh& mesh, const std::string& name, const Shape& shape,
                                 const std::function<void(Placing&)>& build) {
  std::vector<Placement> placements;
  placements.reserve(static_cast<std::size_t>(mesh.ranks()));
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    Placing placing(mesh, rank, name, shape);
    build(placing);
    placements.push_back(placing.placement());
  }
  return placements;
}

}  // namespace trireme::layout

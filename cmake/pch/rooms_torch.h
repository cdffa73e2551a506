// Precompiled for the rooms with tensors. Narrow headers only: all of ATen costs 8 to 16 seconds a file.
#pragma once
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "rooms.h"

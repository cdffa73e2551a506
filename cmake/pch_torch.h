// Precompiled for the rooms with tensors. Narrow headers only: all of ATen costs 8 to 16 seconds a file.
#pragma once
#include <ATen/core/Tensor.h>

#include "pch.h"

#define TRIREME_NORM_TABLE kNormV4
#include "trireme/kernels/cpu/norm_body.h"

#define TRIREME_UPDATE_TABLE kUpdateV4Bf16
#include "trireme/kernels/cpu/update_body.h"

#define TRIREME_UPDATE_TABLE kUpdateV3
#include "trireme/kernels/cpu/update_body.h"

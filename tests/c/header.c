/* The header stands alone: nothing comes before it, and it may come twice. */

#include "deep_ep.h"
#include "deep_ep.h"

int main(void)
{
    const uint32_t header = DEEP_EP_VERSION_MAJOR * 10000 + DEEP_EP_VERSION_MINOR * 100 + DEEP_EP_VERSION_PATCH;
    return deep_ep_version() != header;
}

/* Preload for tests: the software Vulkan driver poses as an AMD APU's graphics.
 *
 * The engine ignores CPU-type Vulkan devices, so a machine without a GPU cannot show what happens
 * with one. This changes what the driver says of itself: device type, name, and the size of its
 * memory heap. Work still runs on the CPU, with the memory that is really there.
 *
 *   TEST_VK_HEAP_MIB   size of each heap (8192)
 *   TEST_VK_FREE_MIB   budget of each heap (the heap's size)
 *   TEST_VK_NAME       device name ("AMD Radeon Graphics (RADV TEST)")
 *
 * cc -shared -fPIC -o vk_igpu.so vk_igpu.c -ldl
 *
 * The few structures that are touched are declared here after the Vulkan specification, so that
 * the test needs a compiler and no headers.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*Function)(void);
typedef void *Device;

enum {
    TYPE_INTEGRATED_GPU = 1,
    MAINTENANCE_3_PROPERTIES = 1000168000,
    MEMORY_BUDGET_PROPERTIES = 1000237000,
    MAINTENANCE_4_PROPERTIES = 1000413001,
};

typedef struct {
    uint32_t api_version, driver_version, vendor_id, device_id, device_type;
    char device_name[256];
    uint8_t pipeline_cache_uuid[16];
    /* Here begin the limits; 64-bit members among them align the whole to eight bytes. */
    _Alignas(8) uint32_t limits_before[7];
    uint32_t max_storage_buffer_range;
} Properties;

typedef struct {
    uint32_t type_count;
    struct { uint32_t flags, heap; } types[32];
    uint32_t heap_count;
    struct { uint64_t size; uint32_t flags; } heaps[16];
} Memory;

typedef struct Chain {
    uint32_t type;
    struct Chain *next;
} Chain;

typedef struct { Chain chain; Properties properties; } Properties2;
typedef struct { Chain chain; Memory memory; } Memory2;
typedef struct { Chain chain; uint64_t budget[16], usage[16]; } MemoryBudget;
typedef struct { Chain chain; uint32_t descriptors; uint64_t max_allocation; } Maintenance3;
typedef struct { Chain chain; uint64_t max_buffer; } Maintenance4;

static void (*driver_properties)(Device, Properties *);
static void (*driver_properties2)(Device, Properties2 *);
static void (*driver_memory)(Device, Memory *);
static void (*driver_memory2)(Device, Memory2 *);

static uint64_t mebibytes(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return (text != NULL ? strtoull(text, NULL, 10) : otherwise) << 20;
}

static uint64_t heap_bytes(void) { return mebibytes("TEST_VK_HEAP_MIB", 8192); }

/* The engine asks for buffers up to this size; RADV states a little below 4 GiB. */
static const uint64_t largest_buffer = 0xFFFFFFFCull;

static void disguise(Properties *properties) {
    const char *name = getenv("TEST_VK_NAME");
    properties->device_type = TYPE_INTEGRATED_GPU;
    properties->max_storage_buffer_range = UINT32_MAX;
    snprintf(properties->device_name, sizeof properties->device_name, "%s",
             name != NULL ? name : "AMD Radeon Graphics (RADV TEST)");
}

static void resize(Memory *memory) {
    for (uint32_t heap = 0; heap < memory->heap_count; heap++) memory->heaps[heap].size = heap_bytes();
}

static void our_properties(Device device, Properties *properties) {
    driver_properties(device, properties);
    disguise(properties);
}

static void our_properties2(Device device, Properties2 *properties) {
    driver_properties2(device, properties);
    disguise(&properties->properties);
    for (Chain *next = properties->chain.next; next != NULL; next = next->next) {
        if (next->type == MAINTENANCE_3_PROPERTIES)
            ((Maintenance3 *)next)->max_allocation = largest_buffer;
        if (next->type == MAINTENANCE_4_PROPERTIES)
            ((Maintenance4 *)next)->max_buffer = largest_buffer;
    }
}

static void our_memory(Device device, Memory *memory) {
    driver_memory(device, memory);
    resize(memory);
}

static void our_memory2(Device device, Memory2 *memory) {
    driver_memory2(device, memory);
    resize(&memory->memory);
    for (Chain *next = memory->chain.next; next != NULL; next = next->next) {
        if (next->type != MEMORY_BUDGET_PROPERTIES) continue;
        MemoryBudget *budget = (MemoryBudget *)next;
        for (uint32_t heap = 0; heap < memory->memory.heap_count; heap++) {
            budget->budget[heap] = mebibytes("TEST_VK_FREE_MIB", heap_bytes() >> 20);
            budget->usage[heap] = 0;
        }
    }
}

/* Keep the driver's function in SLOT and hand out ours. */
#define REPLACE(SLOT, OURS)               \
    do {                                  \
        *(Function *)&(SLOT) = driver;    \
        return (Function)(OURS);          \
    } while (0)

Function vkGetInstanceProcAddr(void *instance, const char *name) {
    static Function (*loader)(void *, const char *);
    if (loader == NULL) {
        /* The engine loads its Vulkan backend late and privately: RTLD_NEXT would not find it. */
        void *library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) return NULL;
        *(void **)&loader = dlsym(library, "vkGetInstanceProcAddr");
    }
    Function driver = loader(instance, name);
    if (driver == NULL) return NULL;
    if (!strcmp(name, "vkGetInstanceProcAddr")) return (Function)vkGetInstanceProcAddr;
    if (!strcmp(name, "vkGetPhysicalDeviceProperties")) REPLACE(driver_properties, our_properties);
    if (!strcmp(name, "vkGetPhysicalDeviceMemoryProperties")) REPLACE(driver_memory, our_memory);
    if (!strncmp(name, "vkGetPhysicalDeviceProperties2", 30))
        REPLACE(driver_properties2, our_properties2);
    if (!strncmp(name, "vkGetPhysicalDeviceMemoryProperties2", 36))
        REPLACE(driver_memory2, our_memory2);
    return driver;
}

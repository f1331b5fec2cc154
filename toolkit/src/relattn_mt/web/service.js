/** The service worker of the page: files are kept, so that the site works without a network. The line before this comment is
    written by the export. FILES are the files of the site, VERSION is their hash. Names with a hash are kept once they are read. */

const PREFIX = `relattn ${self.registration.scope} `;
const isHashed = name => /-[0-9a-f]{12}\./.test(name);

async function install() {
    const cache = await caches.open(PREFIX + VERSION);
    const requests = FILES.filter(name => !isHashed(name)).map(name => new Request(name, { cache: 'reload' }));
    await cache.addAll(requests);
    await self.skipWaiting();
}

/** Delete the caches of earlier versions, apart from models and engines that have not changed. */
async function activate() {
    const cache = await caches.open(PREFIX + VERSION);
    const earlier = (await caches.keys()).filter(key => key.startsWith(PREFIX) && key !== PREFIX + VERSION);
    for (const key of earlier) {
        const old = await caches.open(key);
        for (const name of FILES.filter(isHashed)) {
            const kept = await old.match(name);
            if (kept) await cache.put(name, kept);
        }
        await caches.delete(key);
    }
    await self.clients.claim();
}

async function answer(request, name) {
    const cache = await caches.open(PREFIX + VERSION);
    const kept = await cache.match(name);
    if (kept) return kept;
    const response = await fetch(request);
    const tell = async () => (await self.clients.matchAll()).forEach(page => page.postMessage('not kept'));
    if (response.ok) cache.put(name, response.clone()).catch(tell); // the storage may be full
    return response;
}

self.addEventListener('install', event => event.waitUntil(install()));
self.addEventListener('activate', event => event.waitUntil(activate()));
self.addEventListener('fetch', event => {
    const { scope } = self.registration;
    const [url] = event.request.url.split(/[?#]/);
    const name = url.startsWith(scope) ? url.slice(scope.length) || 'index.html' : '';
    if (event.request.method === 'GET' && FILES.includes(name)) event.respondWith(answer(event.request, name));
});

"use strict";
// The page: asks /v1, shows what it says. Text from anywhere is only ever set as textContent.

const one = (selector, within = document) => within.querySelector(selector);
const ask = one("#ask"), stage = one("#stage"), list = one("#history ul");
let facts = {}, limits = {}, runs = [], shown = null, pictureOf = null, timer = null, more = false, howMany = 20;

async function call(path, options = {}) {
  const answer = await fetch(path, options);
  if (answer.status === 401) { login(); throw new Error("the token is needed"); }
  const body = answer.status === 204 ? null : await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(body?.error?.message ?? `the server answered ${answer.status}`);
  return body;
}

// ---- The token: comes behind # or is typed, becomes a cookie that scripts cannot read.
function login() {
  one("main").hidden = true;
  one("#login").hidden = false;
}

async function enter(token) {
  await call("/session", { method: "POST", headers: { Authorization: `Bearer ${token}` } });
  one("#login").hidden = true;
}

one("#login").onsubmit = async event => {
  event.preventDefault();
  const problem = one("#login .error");
  problem.textContent = "";
  try { await enter(one("#login input").value); await start(); }
  catch { problem.textContent = "That is not this server's token."; }
};

// ---- The form
function fill(settings) {
  const values = { ...settings, num_frames: settings.frames ?? settings.num_frames };
  for (const [name, value] of Object.entries(values)) {
    const field = ask.elements[name];
    if (!field || field.type === "file") continue;
    if (field.type === "checkbox") field.checked = value === true || value === "true";
    else field.value = value ?? "";
  }
  offerQuality();
}

function offerQuality() {
  const own = ["", "svoo"].includes(ask.elements.method.value);
  ask.elements.quality.disabled = !own;
  if (!own) ask.elements.quality.value = "";
}

function options(select, names, first) {
  select.replaceChildren(...[["", first], ...names.map(name => [name, name])].map(([value, text]) => new Option(text, value)));
}

function prepareForm() {
  one("#model").textContent = facts.name;
  document.title = `svoo: ${facts.name}`;
  options(ask.elements.method, facts.methods, "automatic");
  options(ask.elements.quality, facts.qualities, "default");
  for (const name of ["width", "height"]) Object.assign(ask.elements[name], { step: facts.side_step, min: facts.side_step, max: limits.side });
  Object.assign(ask.elements.num_frames, { step: facts.frame_step, max: limits.frames });
  ask.elements.steps.max = limits.steps;
  ask.elements.prompt.maxLength = ask.elements.negative_prompt.maxLength = limits.prompt;
  one("#picture").hidden = !facts.takes_picture;
  showPicture();
  one("#hint").hidden = !facts.hint;
  one("#hint pre").textContent = facts.hint;
  const { width, height, frames, steps, guidance, fps } = facts;
  fill({ prompt: facts.example, width, height, frames, steps, guidance, fps });
}

function followLink() {
  const query = new URLSearchParams(location.search);
  if (!query.size) return;
  fill(Object.fromEntries(query));
  pictureOf = query.get("picture_of");
  showPicture();
  one("#more").open = true;
}

// The picture to start from: a file of this machine, else that of the run that a link repeats.
function showPicture() {
  const field = ask.elements.input_reference, [file] = field.files, box = one("#chosen"), image = one("img", box);
  const most = limits.upload / 2 ** 20;
  if (image.src) URL.revokeObjectURL(image.src);
  if (file) image.src = URL.createObjectURL(file);
  else if (pictureOf) image.src = content({ id: pictureOf }, "picture");
  else image.removeAttribute("src");
  box.hidden = !file && !pictureOf;
  field.required = facts.needs_picture && !pictureOf;
  field.setCustomValidity(file?.size > limits.upload ? `The picture has ${(file.size / 2 ** 20).toFixed(1)} MB; at most ${most} MB are taken.` : "");
}

function withoutPicture() {
  ask.elements.input_reference.value = "";
  pictureOf = null;
  showPicture();
}

function linkTo(run) {
  const { picture, frames, ...settings } = run.settings;
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...settings, num_frames: frames })) if (value !== null && value !== false) query.set(name, value);
  if (picture) query.set("picture_of", run.id);
  return `${location.origin}/?${query}`;
}

ask.elements.method.onchange = offerQuality;
ask.elements.input_reference.onchange = showPicture;
one("#chosen button").onclick = withoutPicture;
one("#chosen img").onerror = () => {  // a file that is none is the server's to refuse
  if (!pictureOf || ask.elements.input_reference.files.length) return;
  withoutPicture();
  one("#ask > .error").textContent = "The picture of that run is gone: choose one.";
};
ask.onsubmit = async event => {
  event.preventDefault();
  const problem = one("#ask > .error"), button = one("#make"), body = new FormData(ask);
  body.set("size", `${body.get("width")}x${body.get("height")}`);
  body.delete("width"); body.delete("height");
  body.set("dense", ask.elements.dense.checked);
  if (!body.get("input_reference")?.size) {
    body.delete("input_reference");
    if (pictureOf) body.set("picture_of", pictureOf);
  }
  problem.textContent = "";
  button.disabled = true;
  try {
    const run = await call("/v1/videos", { method: "POST", body });
    runs.unshift(run);
    show(run.id);
    if (matchMedia("(max-width: 52rem)").matches) stage.scrollIntoView({ behavior: "smooth" });
    refresh();
  } catch (error) { problem.textContent = error.message; }
  finally { button.disabled = false; }
};

// ---- One run
const content = (run, variant) => `/v1/videos/${run.id}/content?variant=${variant}`;
const seconds = value => value >= 90 ? `${Math.floor(value / 60)} min ${Math.round(value % 60)} s` : `${value.toFixed(value < 10 ? 1 : 0)} s`;

function where(run) {
  if (run.status === "queued") return run.waiting_before ? `waiting, ${run.waiting_before} before it` : "waiting, the next one";
  if (run.phase === "stopping") return "stopping at the end of this step";
  if (!run.steps) return "starting";
  const left = run.seconds_left ? `, about ${seconds(run.seconds_left)} left` : "";
  return `${run.phase}: step ${run.step} of ${run.steps}${left}`;
}

function statusOf(run) {
  if (run.error) return run.error.code.replace("generation_", "");
  return { queued: "waiting", in_progress: "running", completed: "done" }[run.status];
}

function pairs(target, rows) {
  target.replaceChildren(...rows.map(([name, value]) => {
    const row = document.createElement("div"), term = document.createElement("dt"), text = document.createElement("dd");
    term.textContent = name; text.textContent = value;
    row.append(term, text);
    return row;
  }));
}

function figures(run) {
  const { figures: f } = run, rows = [];
  if (!f.seconds) return rows;
  rows.push(["denoising", seconds(f.seconds.denoising)], ["in all", seconds(f.seconds.total)]);
  rows.push(["density", f.density === null ? "1 (dense)" : f.density.toFixed(3)]);
  if (f.error != null) rows.push(["error of attention", f.error.toFixed(3)]);
  if (f.tokens) rows.push(["video tokens", f.tokens.toLocaleString("en")]);
  const dense = f.against_dense;
  if (dense) {
    rows.push(["dense denoising", seconds(dense.seconds.denoising)], ["speed-up", `${dense.speed_up.toFixed(2)}x`]);
    if (dense.ssim !== null) rows.push(["PSNR", dense.psnr === null ? "equal" : `${dense.psnr.toFixed(1)} dB`], ["SSIM", dense.ssim.toFixed(4)]);
  }
  return rows;
}

function player(run, variant, caption) {
  const figure = document.createElement("figure"), video = document.createElement("video"), text = document.createElement("figcaption");
  Object.assign(video, { src: content(run, variant), controls: true, loop: true, muted: true, autoplay: true, playsInline: true });
  video.dataset.variant = variant;
  text.textContent = caption;
  figure.append(text, video);
  return figure;
}

// What is done to one of two videos is done to the other, so that the same frames stand side by side.
function keepTogether(videos) {
  videos.forEach((video, at) => {
    const other = videos[1 - at];
    const follow = () => { if (Math.abs(other.currentTime - video.currentTime) > (video.paused ? .001 : .1)) other.currentTime = video.currentTime; };
    video.onseeked = follow;
    video.onratechange = () => { other.playbackRate = video.playbackRate; };
    video.onpause = () => { other.pause(); follow(); };
    video.onplay = () => { follow(); other.play().catch(() => {}); };
  });
}

function show(id) {
  shown = id;
  stage.replaceChildren(one("#run").content.cloneNode(true));
  const box = one(".run", stage);
  box.dataset.id = id;
  one(".cancel", box).onclick = () => act(`/v1/videos/${id}/cancel`, "POST");
  one(".delete", box).onclick = async () => {
    if (!confirm("Delete this run and its video?")) return;
    await act(`/v1/videos/${id}`, "DELETE");
    stage.replaceChildren();
    shown = null;
  };
  one(".copy", box).onclick = async event => {
    await navigator.clipboard?.writeText(one(".again", box).href);
    event.target.textContent = "Copied";
  };
  draw();
}

async function act(path, method) {
  try { await call(path, { method }); } catch (error) { one(".why", stage).textContent = error.message; }
  await refresh();
}

function draw() {
  const run = runs.find(entry => entry.id === shown), box = one(".run", stage);
  if (!run || !box) return;
  const working = ["queued", "in_progress"].includes(run.status), status = one(".status", box);
  one(".prompt", box).textContent = run.prompt;
  status.textContent = statusOf(run);
  status.className = `status ${run.status}`;
  one(".working", box).hidden = !working;
  one("progress", box).value = run.steps ? run.step / run.steps : 0;
  one(".where", box).textContent = where(run);
  one(".cancel", box).disabled = run.phase === "stopping";
  one(".again", box).href = linkTo(run);
  one(".save", box).hidden = run.status !== "completed";
  one(".save", box).href = content(run, "video");
  one(".save", box).download = `${run.id}.mp4`;
  one(".map", box).hidden = run.figures.density == null;
  if (box.dataset.drawn === run.status) return;
  box.dataset.drawn = run.status;  // what follows changes with the status alone: videos keep playing
  one(".why", box).textContent = run.error && run.error.code !== "cancelled" ? run.error.message : "";
  pairs(one(".figures", box), figures(run));
  pairs(one(".settings dl", box), Object.entries(run.settings).filter(([, value]) => value !== null && value !== false));
  one(".notes", box).replaceChildren(...run.notes.map(note => Object.assign(document.createElement("li"), { textContent: note })));
  const picture = one(".settings img", box);
  picture.hidden = !run.settings.picture;
  if (run.settings.picture) picture.src = content(run, "picture");
  if (run.status !== "completed") return;
  if (run.figures.density != null) one(".map img", box).src = content(run, "density");
  const players = [player(run, "video", run.figures.method ?? "video")];
  if (run.figures.against_dense) players.push(player(run, "dense", "dense, the same noise"));
  one(".videos", box).replaceChildren(...players);
  if (players.length > 1) keepTogether(players.map(figure => one("video", figure)));
}

// ---- History
function card(run) {
  const item = document.createElement("li"), button = document.createElement("button"), text = document.createElement("div");
  const prompt = document.createElement("strong"), line = document.createElement("span");
  let picture = document.createElement("span");
  if (run.status === "completed") picture = Object.assign(document.createElement("img"), { src: content(run, "thumbnail"), alt: "", loading: "lazy" });
  else { picture.className = "blank"; picture.textContent = statusOf(run); }
  prompt.textContent = run.prompt;
  line.className = "quiet";
  line.textContent = [run.size, `${run.settings.frames} frames`, run.figures.method ?? run.settings.method, `seed ${run.settings.seed}`].filter(Boolean).join(" · ");
  text.append(prompt, line);
  button.append(picture, text);
  button.onclick = () => { show(run.id); stage.scrollIntoView({ behavior: "smooth", block: "nearest" }); drawHistory(); };
  item.append(button);
  item.dataset.key = `${run.id} ${run.status}`;
  return item;
}

function drawHistory() {
  const before = new Map([...list.children].map(item => [item.dataset.key, item]));
  list.replaceChildren(...runs.map(run => before.get(`${run.id} ${run.status}`) ?? card(run)));
  [...list.children].forEach((item, at) => item.setAttribute("aria-current", runs[at].id === shown));
  one("#history .empty").hidden = runs.length > 0;
  one("#older").hidden = !more;
}

async function pages() {
  const found = [];
  let page = { has_more: true };
  while (page.has_more && found.length < howMany) {
    const after = found.length ? `&after=${found.at(-1).id}` : "";
    page = await call(`/v1/videos?limit=${Math.min(100, howMany - found.length)}${after}`);
    found.push(...page.data);
  }
  more = page.has_more;
  return found;
}

async function refresh() {
  clearTimeout(timer);
  let pause = 5000;
  try {
    const found = await pages();
    const watched = shown && !found.some(run => run.id === shown) && runs.some(run => run.id === shown);
    if (watched) found.push(await call(`/v1/videos/${shown}`).catch(() => runs.find(run => run.id === shown)));
    runs = found;
    one("#lost").hidden = true;
    draw();
    drawHistory();
    if (runs.some(run => !["completed", "failed"].includes(run.status))) pause = 700;
  } catch (error) {
    if (!one("#login").hidden) return;
    one("#lost").hidden = !(error instanceof TypeError);
    pause = 2000;
  }
  timer = setTimeout(refresh, pause);
}

one("#older").onclick = () => { howMany += 40; refresh(); };

async function start() {
  const model = (await call("/v1/models")).data[0];
  ({ facts, limits } = model);
  one("main").hidden = false;
  prepareForm();
  followLink();
  await refresh();
  if (runs.length && !shown && !location.search) show(runs[0].id), drawHistory();
}

(async () => {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    history.replaceState(null, "", location.pathname + location.search);
    await enter(token).catch(() => {});
  }
  await start().catch(error => { if (one("#login").hidden) { one("#lost").textContent = error.message; one("#lost").hidden = false; } });
})();
